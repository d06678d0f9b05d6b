// Prints each occurrence that fires as a CloudEvent, in Node.js without any package. It knows the AsyncAPI document only.
//
//   NATS_URL=nats://localhost:4222 node examples/cloud_events.mjs [cron.skipped]
//
// The document names the subject and the headers of each event. Forward the lines to any receiver of CloudEvents. NATS delivers
// an event to those who listen; what was published while nobody listened is in `tocsin events list`. Other programs with the right
// may publish on these subjects too: a message that is no CloudEvent is skipped, with a line on standard error.

import { readFileSync } from "node:fs";
import { connect } from "node:net";

const document = JSON.parse(readFileSync(new URL("../schemas/asyncapi.json", import.meta.url)));
const wanted = process.argv[2] ?? "cron.triggered";
const channel = Object.values(document.channels).find(({ address }) => address.startsWith(`${wanted}.`));
if (!channel) throw new Error(`the document has no channel ${wanted}`);
const [name] = Object.keys(channel.messages);
const attributes = document.components.messages[name].headers.required;
const server = new URL(process.env.NATS_URL ?? "nats://127.0.0.1:4222");
let buffer = Buffer.alloc(0);

/** Return the event of a message in the binary content mode as one object (the structured mode). */
function structured(headers, body) {
  const event = {};
  for (const header of attributes) {
    if (!(header in headers)) throw new Error(`the message has no header ${header}`);
    event[header.slice("ce-".length)] = decodeURIComponent(headers[header]);
  }
  return { ...event, data: JSON.parse(body) };
}

function parsed(head) {
  const lines = head.split("\r\n").slice(1).filter(Boolean);
  return Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf(":")).toLowerCase(), line.slice(line.indexOf(":") + 1).trim()]));
}

function show(subject, head, body) {
  try {
    console.log(JSON.stringify(structured(parsed(head), body)));
  } catch (error) { // it has no headers of an event, another encoding, or no JSON
    console.error(`skipped a message on ${JSON.stringify(subject)}: ${JSON.stringify(error.message)}`);
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
      buffer = buffer.subarray(end + 2 + size + 2);
      show(words[0], all.toString("utf8", 0, head), all.toString("utf8", head));
      continue;
    }
    buffer = buffer.subarray(end + 2);
    if (verb === "INFO") greet();
    else if (verb === "PING") socket.write("PONG\r\n");
    else if (verb === "PONG") console.error(`listening to ${wanted} on ${server.host}`);
    else if (verb === "-ERR") { console.error("server:", words.join(" ")); process.exitCode = 1; }
  }
}

function greet() {
  const options = {
    verbose: false, pedantic: false, headers: true, lang: "node", version: "1",
    user: process.env.NATS_USER ?? (decodeURIComponent(server.username) || undefined),
    pass: process.env.NATS_PASSWORD ?? (decodeURIComponent(server.password) || undefined),
  };
  const subject = channel.address.replace(".{trigger_id}", ".>").replace(/\{\w+\}/g, "*");
  socket.write(`CONNECT ${JSON.stringify(options)}\r\nSUB ${subject} 1\r\nPING\r\n`);
}

const socket = connect(Number(server.port || 4222), server.hostname);
socket.on("data", read);
socket.on("error", (error) => { console.error(error.message); process.exitCode = 1; });
socket.on("close", () => process.exit());
