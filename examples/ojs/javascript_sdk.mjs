// Enqueue, work, run a workflow and register a cron job with the official JavaScript SDK.
//
//     OJS_URL=http://127.0.0.1:8062 OJS_TOKEN=… OJS_JS_SDK=…/ojs-js-sdk/dist/esm/index.js node examples/ojs/javascript_sdk.mjs
//
// The SDK is https://github.com/openjobspec/ojs-js-sdk, and is not on npm: build a clone of it (`npm ci && npx tsc -p tsconfig.json`).

const { OJSClient, OJSWorker, batch, chain } = await import(process.env.OJS_JS_SDK ?? "@openjobspec/sdk");

const url = process.env.OJS_URL ?? "http://127.0.0.1:8062";
const headers = process.env.OJS_TOKEN ? { Authorization: `Bearer ${process.env.OJS_TOKEN}` } : {};
const queue = "javascript-sdk";
const alerts = [];
const teams = [];
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const client = new OJSClient({ url, headers });
const worker = new OJSWorker({ url, headers, queues: [queue], pollInterval: 100 });
client.useEnqueue("add team", (job, next) => next({ ...job, meta: { ...job.meta, team: "mail" } }));
worker.use("note team", async (ctx, next) => {
  if (ctx.job.meta?.team) teams.push(ctx.job.meta.team);
  return next();
});
worker.register("email.send", async (ctx) => ({ to: ctx.job.args[0] }));
worker.register("email.fail", async (ctx) => {
  throw new Error(`no address ${ctx.job.args[0]}`);
});
worker.register("email.alert", async (ctx) => {
  alerts.push(ctx.job.args[0]);
});

const unique = { key: ["type", "args"], onConflict: "reject" };
const job = await client.enqueue("email.send", ["ada@example.com"], { queue, unique });
const second = await client.enqueue("email.send", ["ada@example.com"], { queue, unique }).then(
  () => "created",
  (error) => error.code,
);
await worker.start();
let shown;
while ((shown = await client.getJob(job.id)).state !== "completed") await pause(100);

const send = (name) => ({ type: "email.send", args: [`${name}@example.com`], options: { queue } });
const broken = { type: "email.fail", args: ["nobody"], options: { queue, retry: { max_attempts: 1 } } };
const alert = { type: "email.alert", args: ["a mail failed"], options: { queue } };
const workflows = [
  await client.workflow(chain(send("bob"), send("eve"))),
  await client.workflow(batch([send("bob"), send("eve"), broken], { on_failure: alert })),
];
const states = [];
for (const { id } of workflows) {
  let workflow;
  while (["pending", "running"].includes((workflow = await client.getWorkflow(id)).state)) await pause(100);
  states.push(workflow.state);
}
const cron = await client.cron.register({
  name: "javascript-sdk",
  cron: "0 9 * * *",
  type: "email.send",
  args: ["ada@example.com"],
  options: { queue },
});
await worker.stop();
console.log(
  JSON.stringify({ job: shown.state, result: shown.result, second, workflows: states, alerts, teams, cron: (cron.cron_job ?? cron).name }),
);
