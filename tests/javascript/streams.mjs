// Logs, exec with its exit code and stdin, and port-forward with the official JavaScript client: WebSockets.
import assert from "node:assert/strict";
import net from "node:net";
import { PassThrough, Writable } from "node:stream";
import { CoreV1Api, Exec, KubeConfig, Log, PortForward } from "@kubernetes/client-node";

const config = new KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(CoreV1Api);

class Collected extends Writable {
  text = "";
  _write(chunk, _encoding, done) {
    this.text += chunk;
    done();
  }
}

assert.equal(await core.readNamespacedPodLog({ name: "web", namespace: "default" }), "hello from the log\n");
const log = new PassThrough();
await new Log(config).log("default", "web", "a", log, { tailLines: 1 });
let logged = "";
for await (const chunk of log) logged += chunk;
assert.equal(logged, "hello from the log\n");

const exec = (command, stdin) =>
  new Promise((resolve, reject) => {
    const [out, err] = [new Collected(), new Collected()];
    const finished = (status) => resolve({ out: out.text, err: err.text, status });
    new Exec(config).exec("default", "web", "a", command, out, err, stdin, false, finished).catch(reject);
  });
const both = await exec(["sh", "-c", "echo out; echo err >&2"], null);
assert.deepEqual([both.out, both.err, both.status.status], ["out\n", "err\n", "Success"]);
const stdin = new PassThrough();
stdin.write("it\n");
const talk = await exec(["sh", "-c", "read x; echo got $x; exit 7"], stdin);
assert.equal(talk.out, "got it\n");
assert.equal(talk.status.reason, "NonZeroExitCode");
assert.deepEqual(talk.status.details.causes, [{ reason: "ExitCode", message: "7" }]);

const server = net.createServer((socket) => socket.on("data", (data) => socket.end(data.toString().toUpperCase())));
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const { port } = server.address();
const [input, output] = [new PassThrough(), new PassThrough()];
const forwarded = await new PortForward(config).portForward("default", "web", [port], output, null, input);
input.write("hello");
const [answer] = await new Promise((resolve) => output.once("data", (data) => resolve([data])));
assert.equal(answer.toString(), "HELLO");
(typeof forwarded === "function" ? forwarded() : forwarded)?.close();
console.log("ok");
process.exit(0);
