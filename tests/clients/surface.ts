// What our client does that the guide's scripts do not ask of it.
import assert from "node:assert/strict";
import * as forkyard from "forkyard";

const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);
const megabytes = new Uint8Array(3 << 20).map((_, at) => at * 31 + (at >> 11));

// Sandboxes.
const box = await forkyard.createSandbox({ baseImage: "python:3.13", env: { OF: "all" }, labels: { run: "7" }, maxTtlSeconds: 600 });
assert.deepEqual([box.status, box.baseImage, box.maxTtlSeconds, box.labels], ["running", "python:3.13", 600, { run: "7" }]);
assert.ok(box.createdAt <= new Date());
assert.deepEqual((await forkyard.listSandboxes({ label: "run=7" })).map(({ id }) => id), [box.id]);
await assert.rejects(forkyard.createSandbox({ name: box.name, baseImage: "python:3.13" }), { name: "ArchilApiError", status: 409, code: "name_taken" });
await assert.rejects(forkyard.createSandbox({ baseImage: "no-such-image:1" }), { name: "SandboxStartError", message: /no-such-image/ });
await assert.rejects(forkyard.getSandbox("70d1eaca-0000-4000-8000-000000000000"), { status: 404 });

// Commands.
const said = await box.exec('echo "$OF $ONE $(pwd)"; echo é >&2; exit 7', { env: { ONE: "each" }, cwd: "/tmp" });
assert.deepEqual(said, { status: "completed", exitCode: 7, stdout: "all each /tmp\n", stderr: "é\n" });
const late = await box.exec("echo begun; sleep 60", { timeoutSeconds: 0.5 });
assert.deepEqual([late.status, late.exitCode, late.stdout], ["timed_out", undefined, "begun\n"]);
await assert.rejects(box.exec("true", { cwd: "/nowhere" }), { name: "SandboxProcessError", code: "invalid_cwd" });
const pieces: [string, string][] = [];
const quiet = await box.exec("echo a; sleep 0.2; echo b >&2", { collectOutput: false, onOutput: (data, stream) => pieces.push([stream, text(data)]) });
assert.deepEqual([quiet.stdout, pieces], ["", [["stdout", "a\n"], ["stderr", "b\n"]]]);
await assert.rejects(box.exec("echo a", { onOutput: () => { throw new Error("of the caller"); } }), { message: "of the caller" });
const terminal = await box.exec("python3 -c 'import os; print(*os.get_terminal_size())'", { terminal: { cols: 100, rows: 30 } });
assert.equal(terminal.stdout, "100 30\r\n");
assert.equal((await box.exec("head -c 3000000 /dev/zero | tr '\\0' x")).stdout.length, 3_000_000);

// Processes.
const asked = await box.run("while read -r line; do echo got $line; done");
await asked.sendInput("one\n");
asked.disconnect();
await assert.rejects(asked.wait(), { name: "SandboxProcessError" });
const again = await box.attach(asked.id);
await again.sendInput("two\n");
again.closeStdin();
assert.equal((await again.wait()).stdout, "got one\ngot two\n");
const rest = await box.attach(asked.id, { offset: 8 });
assert.deepEqual([(await rest.wait()).stdout, rest.missed], ["got two\n", 0]);
const killed = await box.run("sleep 60");
await killed.kill();
assert.equal((await killed.wait()).status, "cancelled");
await assert.rejects(killed.resize(10, 10), { code: "no_terminal" });
await assert.rejects(killed.sendInput("more"), { name: "SandboxProcessError" });

// Files.
await box.files.uploadFile(megabytes, "/made/on the way/$(data)", { mode: 0o600 });
assert.equal((await box.exec("stat -c %a:%s /made/*/*; ls -A /made/*")).stdout, "600:3145728\n$(data)\n");
assert.deepEqual(await box.files.downloadFile("/made/on the way/$(data)"), megabytes);
await box.files.uploadFile("", "/empty");
assert.equal((await box.files.downloadFile("/empty")).length, 0);
await assert.rejects(box.files.downloadFile("/nothing"), { name: "SandboxFileTransferError", message: /No such file/ });
await assert.rejects(box.files.uploadFile(megabytes, "/made"), { name: "SandboxFileTransferError", message: /is a directory/ });
await assert.rejects(box.files.uploadFile("x", "relative"), { name: "SandboxFileTransferError" });

// Lives.
const young = await forkyard.createSandbox({ name: "young", baseImage: "python:3.13" }, { wait: false });
await young.up();
await young.stop();
assert.deepEqual([(await box.pause()).status, (await box.resume()).status], ["paused", "running"]);
const forks = await Promise.all([1, 2, 3].map((number) => box.fork({ name: `fork-${number}`, labels: { fork: `${number}` } })));
assert.deepEqual(forks.map(({ status, name, labels }) => [status, name, labels.run]), [1, 2, 3].map((number) => ["running", `fork-${number}`, "7"]));
assert.equal((await forks[0]!.exec("cat /empty; stat -c %s /made/*/*")).stdout, "3145728\n");
await assert.rejects(box.delete(), { status: 409 });
assert.equal((await box.stop()).status, "stopped");
assert.ok(box.checkpoint);
await assert.rejects(box.exec("true"), { name: "ArchilApiError", status: 409 });
assert.equal((await (await box.start()).stop()).status, "stopped");
await box.delete({ cascade: true });
await young.delete();
assert.deepEqual((await forkyard.listSandboxes()).map(({ status }) => status), ["failed"]); // whose image there is not
for (const failed of await forkyard.listSandboxes()) await failed.delete();

// Disks.
const { disk, token } = await forkyard.createDisk({ name: "of-ours" });
assert.match(token!, /^adt_/);
assert.equal((await forkyard.createDisk({ name: "of-ours" })).token, null);
assert.equal((await forkyard.getDisk(disk.id)).name, "of-ours");
assert.deepEqual((await forkyard.listDisks({ name: "nothing" })), []);
const { etag } = await disk.putObject("a b/é&<+%2e>.txt", "one\ntwo\n", "text/plain");
assert.equal(text(await disk.getObject("a b/é&<+%2e>.txt")), "one\ntwo\n");
const head = await disk.headObject("a b/é&<+%2e>.txt");
assert.deepEqual([head?.size, head?.etag, head?.contentType], [8, etag, "text/plain"]);
assert.deepEqual([await disk.headObject("nothing"), await disk.objectExists("nothing")], [null, false]);
await assert.rejects(disk.getObject("nothing"), { name: "ArchilS3Error", status: 404, code: "NoSuchKey" });
await assert.rejects(disk.putObject("../of-another/x", "x"), { name: "ArchilS3Error", code: "InvalidKey" });
await Promise.all([1, 2, 3, 4].map((number) => disk.appendObject("log", `${number}\n`).catch(() => disk.appendObject("log", `${number}\n`))));
assert.deepEqual(text(await disk.getObject("log")).split("\n").sort(), ["", "1", "2", "3", "4"]);
await assert.rejects(disk.appendObject("log", new Uint8Array((1 << 20) + 1)), { code: "EntityTooLarge" });
await disk.exec("mkdir pages && cd pages && touch $(seq 1100)"); // a page has 1000
assert.equal((await disk.listObjects("", { recursive: true })).objects.length, 1102);
assert.equal((await disk.listObjects("pages/", { limit: 3, startAfter: "pages/5" })).objects.length, 3);
const level = await disk.listObjects();
assert.deepEqual([level.objects.map(({ key, size }) => [key, size]), level.commonPrefixes], [[["log", 8]], ["a b/", "pages/"]]);
assert.deepEqual((await disk.listObjects("a b/")).objects.map(({ key }) => key), ["a b/é&<+%2e>.txt"]);
await disk.deleteObject("log");
await disk.deleteObject("log");
const done = await disk.exec("cat a*/*.txt; echo oops >&2; exit 3");
assert.deepEqual([done.exitCode, done.stdout, done.stderr], [3, "one\ntwo\n", "oops\n"]);
const server = new forkyard.Archil();
assert.equal((await server.exec({ disks: { here: disk, part: { disk, subdirectory: "a b" } }, command: "cat part/*; ls here" })).stdout, "one\ntwo\na b\npages\n");
const found = await disk.grep({ directory: "a b", pattern: "^t.o" });
assert.deepEqual(found.matches.map(({ line, text }) => [line, text]), [[2, "two"]]);
const { url } = await disk.share("a b/é&<+%2e>.txt", { expiresIn: 60 });
assert.equal(await (await fetch(url)).text(), "one\ntwo\n");
const mounted = await forkyard.createSandbox({ baseImage: "python:3.13", mounts: [{ disk, readOnly: true, path: "/disk" }] });
assert.equal((await mounted.exec("cat /disk/a*/*; touch /disk/x")).stdout, "one\ntwo\n");
await mounted.delete({ cascade: true });

// Keys.
const key = await server.tokens.create({ name: "of-ours" });
const other = new forkyard.Archil({ apiKey: key.token! });
assert.ok((await other.tokens.list()).some(({ name }) => name === "of-ours"));
await server.tokens.delete(key.id);
await assert.rejects(other.disks.list(), { name: "ArchilApiError", status: 401 });
const nobody = new forkyard.Archil({ baseUrl: "http://127.0.0.1:9" });
await assert.rejects(nobody.disks.list(), { name: "ArchilError", code: "unreachable" });
for (const each of await forkyard.listDisks()) await each.delete();
