import { ArchilS3Error } from "./errors.js";
import { unescaped, type Body, type Wire } from "./wire.js";

export interface DiskData {
  id: string;
  name: string;
  organization: string;
  status: "available" | "creating" | "deleting" | "deleted" | "failed";
  provider: string;
  region: string;
  createdAt: string;
  [more: string]: unknown;
}

/** What became of a command; each stream's last 128 KiB. */
export interface ExecResult {
  exitCode: number;
  stdout: string;
  stderr: string;
  timing: { totalMs: number; queueMs: number; executeMs: number };
}

export interface GrepOptions {
  /** "" is the whole disk. */
  directory: string;
  pattern: string;
  recursive?: boolean;
  maxResults?: number;
  maxDurationSeconds?: number;
  [more: string]: unknown;
}

export interface GrepResult {
  matches: { file: string; line: number; text: string }[];
  stoppedReason: "completed" | "incomplete" | "max_results" | "deadline" | "list_failed";
  filesScanned: number;
}

export interface ObjectMetadata {
  size: number;
  etag?: string;
  contentType?: string;
  lastModified?: Date;
}

export interface S3Object {
  key: string;
  size: number;
  etag: string;
  lastModified: Date;
}

export interface ListObjectsOptions {
  /** All beneath the prefix; otherwise what is deeper comes as `commonPrefixes`. */
  recursive?: boolean;
  limit?: number;
  /** Only keys behind this one. */
  startAfter?: string;
}

export interface ListObjectsResult {
  objects: S3Object[];
  commonPrefixes: string[];
}

/** A disk. */
export class Disk {
  #data: DiskData;

  constructor(private readonly wire: Wire, data: DiskData) {
    this.#data = data;
  }

  get id(): string { return this.#data.id; }
  get name(): string { return this.#data.name; }
  get status(): DiskData["status"] { return this.#data.status; }
  get createdAt(): string { return this.#data.createdAt; }

  /** All that the server tells of it. */
  toJSON(): DiskData {
    return this.#data;
  }

  async refresh(): Promise<this> {
    this.#data = await this.wire.call("GET", `/api/disks/${this.id}`);
    return this;
  }

  /** Delete it, with all that is on it. */
  async delete(): Promise<void> {
    await this.wire.call("DELETE", `/api/disks/${this.id}`);
  }

  /** Run a command, a text for bash, in the disk's top directory. It is not sent twice. */
  exec(command: string): Promise<ExecResult> {
    return this.wire.call("POST", `/api/disks/${this.id}/exec`, { body: { command } });
  }

  /** Search files by a regular expression. */
  grep(options: GrepOptions): Promise<GrepResult> {
    return this.wire.call("POST", `/api/disks/${this.id}/grep`, { body: options, again: true });
  }

  /** A link that gives one file to whoever has it, for a day unless it is said. */
  share(key: string, { expiresIn }: { expiresIn?: number } = {}): Promise<{ url: string; expiresIn: number }> {
    return this.wire.call("POST", `/api/disks/${this.id}/share`, { body: { key, expiresIn }, again: true });
  }

  async getObject(key: string): Promise<Uint8Array> {
    return new Uint8Array(await (await this.wire.object("GET", this.id, key)).arrayBuffer());
  }

  /** What is known of an object; null where there is none. */
  async headObject(key: string): Promise<ObjectMetadata | null> {
    try {
      const { headers } = await this.wire.object("HEAD", this.id, key);
      const [etag, type, modified] = [headers.get("ETag"), headers.get("Content-Type"), headers.get("Last-Modified")];
      return {
        size: Number(headers.get("Content-Length")),
        ...(etag ? { etag } : {}),
        ...(type ? { contentType: type } : {}),
        ...(modified ? { lastModified: new Date(modified) } : {}),
      };
    } catch (error) {
      if (error instanceof ArchilS3Error && error.status === 404) return null;
      throw error;
    }
  }

  async objectExists(key: string): Promise<boolean> {
    return (await this.headObject(key)) !== null;
  }

  /** Write an object, in the place of the one there is. */
  async putObject(key: string, body: Body, contentType = "application/octet-stream"): Promise<{ etag: string }> {
    const headers = { "Content-Type": contentType };
    const answer = await this.wire.object("PUT", this.id, key, { body, headers });
    return { etag: answer.headers.get("ETag") ?? "" };
  }

  /** Add up to 1 MiB to an object, whole or not at all. It is not sent twice: that could add it twice. */
  async appendObject(key: string, body: Body): Promise<{ etag: string }> {
    const headers = { "Content-Type": "application/octet-stream" };
    const answer = await this.wire.object("PUT", this.id, key, { query: { append: true }, body, headers, again: false });
    return { etag: answer.headers.get("ETag") ?? "" };
  }

  /** Delete an object, if there is one. */
  async deleteObject(key: string): Promise<void> {
    await this.wire.object("DELETE", this.id, key);
  }

  /** The objects whose keys begin with the prefix. */
  async listObjects(prefix = "", options: ListObjectsOptions = {}): Promise<ListObjectsResult> {
    const all: ListObjectsResult = { objects: [], commonPrefixes: [] };
    const limit = options.limit ?? Infinity;
    for await (const page of this.listObjectsPages(prefix, options)) {
      all.objects.push(...page.objects);
      all.commonPrefixes.push(...page.commonPrefixes);
      if (all.objects.length + all.commonPrefixes.length >= limit) break;
    }
    return all;
  }

  /** The same, a page at a time. */
  async *listObjectsPages(prefix = "", options: ListObjectsOptions = {}): AsyncGenerator<ListObjectsResult> {
    let left = options.limit ?? Infinity;
    let token: string | undefined;
    while (left > 0) {
      const query = {
        "list-type": 2,
        "encoding-type": "url", // so that a key may have any letter, in XML too
        prefix,
        delimiter: options.recursive ? undefined : "/",
        "start-after": options.startAfter,
        "continuation-token": token,
        "max-keys": Math.min(left, 1000),
      };
      const text = await (await this.wire.object("GET", this.id, "", { query })).text();
      const page = listing(text);
      yield page;
      left -= page.objects.length + page.commonPrefixes.length;
      token = tag(text, "NextContinuationToken");
      if (token === undefined) return;
    }
  }
}

/** What a list of S3 has in it: a flat XML document of the server's own, not just any. */
function listing(text: string): ListObjectsResult {
  const parts = (name: string) => [...text.matchAll(new RegExp(`<${name}>(.*?)</${name}>`, "gs"))].map((match) => match[1]!);
  const key = (part: string, name: string) => decodeURIComponent(tag(part, name)!.replaceAll("+", "%20"));
  return {
    objects: parts("Contents").map((part) => ({
      key: key(part, "Key"),
      size: Number(tag(part, "Size")),
      etag: tag(part, "ETag")!,
      lastModified: new Date(tag(part, "LastModified")!),
    })),
    commonPrefixes: parts("CommonPrefixes").map((part) => key(part, "Prefix")),
  };
}

function tag(text: string, name: string): string | undefined {
  const found = new RegExp(`<${name}>([^<]*)</${name}>`).exec(text)?.[1];
  return found === undefined ? undefined : unescaped(found);
}
