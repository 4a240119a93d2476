// The calls of npm's `disk`, one after the other, with what each must answer.
import assert from "node:assert/strict";
import * as archil from "disk";

const { disk, token } = await archil.createDisk({ name: "from-npm" });
assert.match(disk.id, /^dsk-[0-9a-f]{16}$/);
assert.match(token, /^adt_/);
assert.equal((await archil.createDisk({ name: "from-npm" })).disk.id, disk.id);
await archil.createDisk({ name: "other" });
assert.deepEqual((await archil.listDisks()).map((each) => each.name).sort(), ["from-npm", "other"]);
assert.equal((await archil.listDisks({ limit: 1 })).length, 1);
assert.deepEqual((await archil.listDisks({ name: "nothing" })), []);
const same = await archil.getDisk(disk.id);
assert.deepEqual([same.name, same.status], ["from-npm", "available"]);
await assert.rejects(archil.getDisk("dsk-0000000000000000"), { name: "ArchilApiError", status: 404 });

const text = (bytes) => new TextDecoder().decode(bytes);
const { etag } = await disk.putObject("a b/é+%2e.txt", "one\ntwo\n", "text/plain");
assert.equal(text(await disk.getObject("a b/é+%2e.txt")), "one\ntwo\n");
const head = await disk.headObject("a b/é+%2e.txt");
assert.deepEqual([head.size, head.etag, head.contentType], [8, etag, "text/plain"]);
assert.ok(Math.abs(Date.now() - head.lastModified.getTime()) < 120_000);
assert.equal(await disk.headObject("nothing"), null);
assert.equal(await disk.objectExists("a b/é+%2e.txt"), true);
await assert.rejects(disk.getObject("nothing"), { name: "ArchilS3Error", status: 404, code: "NoSuchKey" });
for (const number of [1, 2, 3]) await disk.putObject(`many/${number}`, new Uint8Array([number]));
const level = await disk.listObjects();
assert.deepEqual([level.objects, level.commonPrefixes], [[], ["a b/", "many/"]]);
const all = await disk.listObjects("", { recursive: true });
assert.deepEqual(all.objects.map((object) => object.key), ["a b/é+%2e.txt", "many/1", "many/2", "many/3"]);
const two = await disk.listObjects("many/", { limit: 2 });
assert.deepEqual([two.objects.length, two.isTruncated], [2, true]);
const rest = await disk.listObjects("many/", { startAfter: "many/2", singlePage: true });
assert.deepEqual([rest.objects.map((object) => object.key), rest.isTruncated], [["many/3"], false]);
await disk.deleteObject("many/3");
await disk.deleteObject("many/3");
assert.equal(await disk.objectExists("many/3"), false);

const done = await disk.exec("cat a*/*.txt; echo oops >&2; exit 3");
assert.deepEqual([done.exitCode, done.stdout, done.stderr], [3, "one\ntwo\n", "oops\n"]);
const over = await archil.exec({ disks: { here: disk, part: { disk, subdirectory: "many", readOnly: true } }, command: "ls part; ls here" });
assert.equal(over.stdout, "1\n2\na b\nmany\n");
await disk.exec("mkdir pages && cd pages && touch $(seq 1100)"); // a page has 1000
assert.equal((await disk.listObjects("pages/")).objects.length, 1100);
await disk.exec("rm -r pages");
const found = await disk.grep({ directory: "", pattern: "^t.o", recursive: true });
assert.deepEqual([found.stoppedReason, found.matches.map(({ file, line, text }) => [file, line, text])], ["completed", [["a b/é+%2e.txt", 2, "two"]]]);
const { url, expiresIn } = await disk.share("many/1", { expiresIn: 60 });
assert.deepEqual([expiresIn, (await (await fetch(url)).arrayBuffer()).byteLength], [60, 1]);

const user = await disk.createToken("ci");
assert.match(user.token, /^adt_/);
await disk.removeTokenUser(user.identifier);
assert.deepEqual(await disk.setAllowedIPs(["127.0.0.0/8"]), ["127.0.0.0/8"]);
assert.deepEqual(await disk.addAllowedIP("::1"), ["127.0.0.0/8", "::1"]);
assert.deepEqual(await disk.removeAllowedIP("::1"), ["127.0.0.0/8"]);
assert.deepEqual(await disk.getAllowedIPs(), ["127.0.0.0/8"]);

const key = await archil.createApiKey({ name: "npm", description: "made over HTTP" });
const another = new archil.Archil({ apiKey: key.token });
assert.equal((await another.disks.get(disk.id)).name, "from-npm");
assert.ok((await archil.listApiKeys()).some(({ name }) => name === "npm"));
await archil.deleteApiKey(key.id);
await assert.rejects(another.disks.list(), { status: 401 });

for (const each of await archil.listDisks()) await each.delete();
assert.deepEqual(await archil.listDisks(), []);
