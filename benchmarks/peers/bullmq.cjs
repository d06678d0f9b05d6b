// The parts of BullMQ: `worker`, and `client`, which enqueues a key for each line that comes in and answers a line each.
const { writeSync, openSync } = require("node:fs");
const { createInterface } = require("node:readline");
const { join } = require("node:path");
const { Queue, Worker } = require("bullmq");

const assignment = JSON.parse(process.env.PEER_ASSIGNMENT);
const { hostname, port } = new URL(assignment.url);
const connection = { host: hostname, port: Number(port), maxRetriesPerRequest: null };
const CONCURRENCY = 100;

async function worker() {
  const pipe = openSync(join(assignment.folder, "starts"), "w");
  const record = async (job) => {
    const at = (performance.timeOrigin + performance.now()) / 1000;
    const monotonic = Number(process.hrtime.bigint()) / 1e9;
    writeSync(pipe, `${job.data.key} ${at} ${monotonic}\n`);
  };
  const running = new Worker("tasks", record, { connection, concurrency: CONCURRENCY });
  process.on("SIGTERM", () => running.close().then(() => process.exit(0)));
}

async function client() {
  const queue = new Queue("tasks", { connection });
  const add = {
    enqueue: async (key) => void (await queue.add("no-op", { key })),
    schedule: async (job, pattern) => void (await queue.upsertJobScheduler(job, { pattern, tz: "UTC" }, { data: { key: job } })),
    completed: () => queue.getCompletedCount(),
  };
  for await (const line of createInterface({ input: process.stdin })) {
    const [number, verb, ...rest] = JSON.parse(line);
    add[verb](...rest).then((answer) => process.stdout.write(JSON.stringify([number, answer ?? null]) + "\n"));
  }
  await queue.close();
}

({ worker, client })[process.argv[2]]();
