// An executor of hip-62 in Node.js without any package: it knows the specification's subjects and envelope only.
//
//   NATS_URL=nats://localhost:4222 node examples/mq_executor.mjs
//
// It takes tasks as the consumer group `job-executors`, runs the function that a task names, and answers on
// mq.scheduler.complete.<job>.<execution_id>. It stops a function when the execution is cancelled, and may report its
// progress. Replace `functions`. With HEALTH_PORT it answers HTTP requests there, for the probes of a container: 200 while it
// is connected, and 503 otherwise.

import { createServer } from "node:http";
import { connect as connectTcp, isIP } from "node:net";
import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import { connect as connectTls } from "node:tls";

const functions = {
  "demo/echo": async ({ input }) => input,
  "demo/fail": async () => { throw new Error("this function always fails"); },
  "demo/sleep": ({ input, progress, signal }) => new Promise((resolve, reject) => {
    progress(0, `sleeping for ${input.seconds} s`);
    const timer = setTimeout(() => resolve({ slept: input.seconds }), 1000 * input.seconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); reject(new Error("cancelled")); });
  }),
};

const env = process.env;
const servers = (env.NATS_URL ?? "nats://127.0.0.1:4222").split(",").map((text) => new URL(text.trim()));
const inbox = `${env.NATS_INBOX_PREFIX ?? "_INBOX"}.${process.pid}${Date.now()}`;
const stream = env.MQ_STREAM ?? "TOCSIN_MQ";
const prefix = env.MQ_PREFIX ?? "mq";
const slots = Number(env.SLOTS ?? 4);
const name = `${hostname()}-${process.pid}`;
const WAIT_S = 5;
const running = new Map(); // execution id -> AbortController of each of its steps

let socket, connected = false, turn = 0, open = 0, free = slots, stopping = false, buffer = Buffer.alloc(0);

function send(line, body) {
  if (!socket?.writable) return;
  socket.write(body === undefined ? `${line}\r\n` : Buffer.concat([Buffer.from(`${line} ${body.length}\r\n`), body, Buffer.from("\r\n")]));
}

function publish(subject, value) {
  send(`PUB ${subject}`, Buffer.from(typeof value === "string" ? value : JSON.stringify(value)));
}

function pull() {
  if (stopping || open || !free) return;
  open = free;
  send(`PUB $JS.API.CONSUMER.MSG.NEXT.${stream}.job-executors ${inbox}.task`,
    Buffer.from(JSON.stringify({ batch: open, expires: WAIT_S * 1e9 })));
}

function answer(data, fields) {
  publish(`${prefix}.scheduler.complete.${data.job_name}.${data.execution_id}`, {
    schema: "hanzo.mq.v1",
    id: `answer_${data.execution_id}_${data.step ?? ""}_${data.attempt}_${fields.status}`,
    type: "scheduler.complete",
    source: name,
    timestamp: new Date().toISOString(),
    data: { job_name: data.job_name, execution_id: data.execution_id, step: data.step, attempt: data.attempt, token: data.token, ...fields },
  });
}

async function work(body, ack) {
  free -= 1;
  const keep = setInterval(() => publish(ack, "+WPI"), 10_000);
  let data, controllers;
  const controller = new AbortController();
  try {
    data = JSON.parse(body).data;
    controllers = running.get(data.execution_id) ?? new Set();
    running.set(data.execution_id, controllers.add(controller));
    answer(data, { status: "started" });
    const run = functions[data.function];
    if (!run) throw Object.assign(new Error(`no function ${data.function}`), { name: "FunctionNotFound", retryable: false });
    const late = new Promise((_, reject) => {
      setTimeout(() => { // rejected first, so that the function's own end is not taken for the reason
        reject(Object.assign(new Error(`timed out after ${data.timeout} s`), { name: "timed_out" }));
        controller.abort();
      }, 1000 * data.timeout).unref();
    });
    const progress = (fraction, message) => answer(data, { status: "progress", progress: fraction, message });
    const result = await Promise.race([run({ ...data, progress, signal: controller.signal }), late]);
    answer(data, { status: "completed", result: result ?? null });
  } catch (error) {
    if (data) answer(data, { status: "failed", error: { type: error.name, message: error.message, retryable: error.retryable ?? true } });
    else console.error("unreadable task", error.message);
  } finally {
    clearInterval(keep);
    controllers?.delete(controller);
    if (data && !controllers?.size) running.delete(data.execution_id);
    publish(ack, "+ACK"); // after the answer: a crash before this line brings the task back
    free += 1;
    pull();
    if (stopping && free === slots) process.exit(0);
  }
}

function onMessage(subject, reply, status, body) {
  if (subject.startsWith(`${prefix}.scheduler.cancel.`)) {
    for (const controller of running.get(JSON.parse(body).data.execution_id) ?? []) controller.abort();
  } else if (reply?.startsWith("$JS.ACK.")) {
    open = Math.max(0, open - 1);
    work(body, reply);
    pull();
  } else if (status !== "100") { // the request is over: 404, 408 or 409
    open = 0;
    setTimeout(pull, status === "503" || status === "409" ? 1000 : 0);
  }
}

function read(chunk) {
  buffer = Buffer.concat([buffer, chunk]);
  for (;;) {
    const end = buffer.indexOf("\r\n");
    if (end < 0) return;
    const [verb, ...words] = buffer.toString("utf8", 0, end).split(/\s+/);
    if (verb === "MSG" || verb === "HMSG") {
      const size = Number(words.at(-1)), head = verb === "HMSG" ? Number(words.at(-2)) : 0;
      if (buffer.length < end + 2 + size + 2) return;
      const all = buffer.subarray(end + 2, end + 2 + size);
      const status = /^NATS\/1\.0 (\d+)/.exec(all.toString("latin1", 0, head))?.[1];
      const reply = words.length === (head ? 5 : 4) ? words[2] : undefined;
      buffer = buffer.subarray(end + 2 + size + 2);
      onMessage(words[0], reply, status, all.toString("utf8", head));
      continue;
    }
    buffer = buffer.subarray(end + 2);
    if (verb === "PING") send("PONG");
    else if (verb === "PONG") connected = true; // the server accepted the user
    else if (verb === "-ERR") console.error("server:", words.join(" "));
  }
}

function greet(server) {
  send(`CONNECT ${JSON.stringify({
    verbose: false, pedantic: false, headers: true, no_responders: true, lang: "node", version: "1", name,
    user: env.NATS_USER ?? (decodeURIComponent(server.username) || undefined),
    pass: env.NATS_PASSWORD ?? (decodeURIComponent(server.password) || undefined),
  })}`);
  send(`SUB ${inbox}.> 1`);
  send(`SUB ${prefix}.scheduler.cancel.> 2`);
  send("PING");
  console.log(`connected to ${server.host}; taking tasks`);
  open = 0;
  pull();
}

function connect() {
  const server = servers[turn++ % servers.length];
  const plain = connectTcp(Number(server.port || 4222), server.hostname);
  const retry = (error) => { if (error?.message) console.error(error.message); };
  socket = undefined;
  connected = false;
  buffer = Buffer.alloc(0);
  plain.once("data", (greeting) => { // INFO comes before TLS
    const info = JSON.parse(greeting.toString().slice(5, greeting.indexOf("\r\n")));
    const servername = isIP(server.hostname) ? undefined : server.hostname; // RFC 6066 has no addresses there
    const options = { socket: plain, host: server.hostname, servername, ca: env.NATS_CA && readFileSync(env.NATS_CA) };
    const start = () => { socket.on("data", read); greet(server); };
    if (info.tls_required || server.protocol === "tls:") {
      socket = connectTls(options, start);
      socket.on("error", retry);
    } else {
      socket = plain;
      start();
    }
  });
  plain.on("error", retry);
  plain.on("close", () => {
    connected = false;
    if (!stopping) setTimeout(connect, 1000);
  });
}

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, () => { // what runs is finished; the server gives the rest to others
    stopping = true;
    if (free === slots) process.exit(0);
  });
}
if (env.HEALTH_PORT) {
  const health = createServer((_, response) => response.writeHead(connected ? 200 : 503).end());
  health.listen(Number(env.HEALTH_PORT), env.HEALTH_HOST);
}
connect();
