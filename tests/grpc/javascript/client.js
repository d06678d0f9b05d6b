// Calls the gRPC service of a test as a program in JavaScript does, and writes what it saw as JSON.

const fs = require("node:fs");
const path = require("node:path");
const { promisify } = require("node:util");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, token, authority] = process.argv.slice(2);
const proto = path.join(__dirname, "..", "..", "..", "schemas", "proto", "tocsin", "v1", "scheduler.proto");
const definition = loader.loadSync(proto, { keepCase: true, longs: String, defaults: true });
const { Scheduler } = grpc.loadPackageDefinition(definition).tocsin.v1;

function clientOf(roots) {
  return new Scheduler(address, grpc.credentials.createSsl(roots));
}

function bearer(text) {
  const metadata = new grpc.Metadata();
  metadata.set("authorization", `Bearer ${text}`);
  return metadata;
}

function unary(client, name) {
  return promisify(client[name].bind(client));
}

async function refusal(call) {
  try {
    await call;
    return null;
  } catch (error) {
    return [grpc.status[error.code], ...error.metadata.get("tocsin-code")];
  }
}

async function main() {
  const client = clientOf(fs.readFileSync(authority));
  const metadata = bearer(token);
  const { jobs } = await unary(client, "ListJobs")({}, metadata);
  const input = { fields: { day: { stringValue: "2026-11-26" }, limit: { numberValue: 3 } } };
  const { execution_id } = await unary(client, "TriggerJob")({ name: jobs[0].name, input }, metadata);
  const stream = client.WatchEvents({ after: "0.0" }, metadata);
  const event = await new Promise((resolve, reject) => stream.once("data", resolve).once("error", reject));
  stream.removeAllListeners("error").on("error", () => {}).cancel();
  const seen = {
    jobs: jobs.map((job) => job.name),
    execution_id,
    event: event.type,
    unknown: await refusal(unary(client, "GetJob")({ name: "absent" }, metadata)),
    stranger: await refusal(unary(client, "ListJobs")({}, bearer("wrong"))),
    untrusted: await refusal(unary(clientOf(null), "ListJobs")({}, metadata)),
  };
  process.stdout.write(JSON.stringify(seen), () => process.exit(0));
}

main();
