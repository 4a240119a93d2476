import { SandboxStartError } from "./errors.js";
import { SandboxFiles } from "./files.js";
import { SandboxProcess, type ProcessOptions, type ProcessResult } from "./process.js";
import { sleep, type Wire } from "./wire.js";

export type SandboxStatus =
  | "pending" | "running" | "pausing" | "paused" | "stopping" | "stopped" | "exited" | "failed" | "deleting" | "deleted";

export interface SandboxMount {
  /** A disk, or its id. */
  disk: { readonly id: string } | string;
  /** Where it is; the only mount is at /mnt/archil unless it is said. */
  path?: string;
  subdirectory?: string;
  readOnly?: boolean;
  /** Share the disk with others that write to it. */
  conditional?: boolean;
  /** How long to wait for others to let go of it. */
  queueMs?: number;
}

export interface CreateSandboxRequest {
  name?: string;
  /** An image's name, as "python:3.13". */
  baseImage?: string;
  imageId?: string;
  vcpuCount?: number;
  memSizeMiB?: number;
  /** What it may write to its disk; the server's own bound when it is left out. */
  storageMiB?: number;
  /** Variables that every process has. */
  env?: Record<string, string>;
  maxTtlSeconds?: number;
  idleTtlSeconds?: number;
  maxConcurrentExecs?: number;
  /** As the server takes it: `{egress: {default, allow, deny}}`. */
  network?: object;
  ports?: number[];
  mounts?: SandboxMount[];
  /** What listSandboxes finds it by. */
  labels?: Record<string, string>;
}

/** What the server tells of a sandbox. */
export interface SandboxData {
  sandbox_id: string;
  name: string;
  status: SandboxStatus;
  vcpu_count: number;
  mem_size_mib: number;
  storage_mib?: number | null;
  base_image: string;
  max_ttl_seconds: number;
  idle_ttl_seconds?: number | null;
  max_concurrent_execs: number;
  created_at: string;
  last_active_at: string;
  exit_reason?: string | null;
  checkpoint?: string | null;
  labels?: Record<string, string>;
}

/** A sandbox. What it tells of itself is as of the last call that changed or refreshed it. */
export class Sandbox {
  readonly files = new SandboxFiles(this);
  #data: SandboxData;

  constructor(private readonly wire: Wire, data: SandboxData) {
    this.#data = data;
  }

  get id(): string { return this.#data.sandbox_id; }
  get name(): string { return this.#data.name; }
  get status(): SandboxStatus { return this.#data.status; }
  get vcpuCount(): number { return this.#data.vcpu_count; }
  get memSizeMiB(): number { return this.#data.mem_size_mib; }
  get storageMiB(): number | null { return this.#data.storage_mib ?? null; }
  get baseImage(): string { return this.#data.base_image; }
  get maxTtlSeconds(): number { return this.#data.max_ttl_seconds; }
  get idleTtlSeconds(): number | undefined { return this.#data.idle_ttl_seconds ?? undefined; }
  get maxConcurrentExecs(): number { return this.#data.max_concurrent_execs; }
  get createdAt(): Date { return new Date(this.#data.created_at); }
  get lastActiveAt(): Date { return new Date(this.#data.last_active_at); }
  get exitReason(): string | undefined { return this.#data.exit_reason ?? undefined; }
  get checkpoint(): string | undefined { return this.#data.checkpoint ?? undefined; }
  get labels(): Record<string, string> { return this.#data.labels ?? {}; }

  toJSON(): SandboxData {
    return this.#data;
  }

  /** Run a command, a text for `sh -c`, to its end. */
  async exec(command: string, options: ProcessOptions = {}): Promise<ProcessResult> {
    return (await this.run(command, options)).wait();
  }

  /** Start a command. */
  run(command: string, { env, cwd, timeoutSeconds, terminal, ...sink }: ProcessOptions = {}): Promise<SandboxProcess> {
    const said = { env, cwd, timeout_seconds: timeoutSeconds, terminal };
    return SandboxProcess.open(this.wire, this.id, { type: "start", command, ...given(said) }, sink);
  }

  /** Look on at a process again, from an offset of its output on. */
  attach(
    processId: string,
    { offset = 0, ...sink }: Pick<ProcessOptions, "onOutput" | "collectOutput"> & { offset?: number } = {},
  ): Promise<SandboxProcess> {
    return SandboxProcess.open(this.wire, this.id, { type: "attach", process_id: processId, offset }, sink);
  }

  /** Ask the server what it is like now. */
  async refresh(): Promise<this> {
    this.#data = await this.wire.call("GET", `/api/sandboxes/${this.id}`);
    return this;
  }

  /** Start it on its disk; without `wait`, do not wait until it runs. */
  async start({ wait = true }: { wait?: boolean } = {}): Promise<this> {
    await this.#do("start", wait);
    return wait ? this.up() : this;
  }

  /** Let one that is paused go on. */
  async resume({ wait = true }: { wait?: boolean } = {}): Promise<this> {
    await this.#do("resume", wait);
    return wait ? this.up() : this;
  }

  /** End its processes and seal its disk. Nothing to do where it has ended. */
  async stop(): Promise<this> {
    await this.#do("stop");
    return this.#past("stopping");
  }

  /** Halt it, with all that runs. */
  async pause(): Promise<this> {
    await this.#do("pause");
    return this.#past("pausing");
  }

  /** A sandbox with a copy of this one's disk. */
  async fork({ wait = true, ...request }: { name?: string; labels?: Record<string, string>; wait?: boolean } = {}): Promise<Sandbox> {
    const path = `/api/sandboxes/${this.id}/fork`;
    const data = await this.wire.call<SandboxData>("POST", path, { query: { wait }, body: request, ...once() });
    const fork = new Sandbox(this.wire, data);
    return wait ? fork.up() : fork;
  }

  /** Delete it. It must have been stopped, and all its forks deleted; `cascade` does both. */
  async delete({ cascade }: { cascade?: boolean } = {}): Promise<void> {
    await this.wire.call("DELETE", `/api/sandboxes/${this.id}`, { query: { cascade } });
  }

  /** Wait until it runs. */
  async up(): Promise<this> {
    await this.#past("pending");
    if (this.status !== "running") {
      throw new SandboxStartError(`sandbox ${this.name} is ${this.status}${this.exitReason ? `: ${this.exitReason}` : ""}`);
    }
    return this;
  }

  async #do(action: string, wait?: boolean): Promise<void> {
    this.#data = await this.wire.call("POST", `/api/sandboxes/${this.id}/${action}`, { query: { wait }, again: true });
  }

  async #past(status: SandboxStatus): Promise<this> {
    while (this.status === status) {
      await sleep(500);
      await this.refresh();
    }
    return this;
  }
}

/** A sandbox that is being made. */
export async function createSandbox(wire: Wire, request: CreateSandboxRequest, wait: boolean): Promise<Sandbox> {
  const {
    vcpuCount, memSizeMiB, storageMiB, baseImage, imageId, maxTtlSeconds, idleTtlSeconds, maxConcurrentExecs, ...same
  } = request;
  const body = {
    ...same,
    vcpu_count: vcpuCount,
    mem_size_mib: memSizeMiB,
    storage_mib: storageMiB,
    base_image: baseImage,
    image_id: imageId,
    max_ttl_seconds: maxTtlSeconds,
    idle_ttl_seconds: idleTtlSeconds,
    max_concurrent_execs: maxConcurrentExecs,
    mounts: request.mounts?.map(({ disk, readOnly, queueMs, ...mount }) => ({
      ...mount,
      disk_id: typeof disk === "string" ? disk : disk.id,
      read_only: readOnly,
      queue_ms: queueMs,
    })),
  };
  const data = await wire.call<SandboxData>("POST", "/api/sandboxes", { query: { wait }, body, ...once() });
  const sandbox = new Sandbox(wire, data);
  return wait ? sandbox.up() : sandbox;
}

/** By its key the server knows a request that is sent again, and answers with what the first one made. */
function once(): { headers: Record<string, string>; again: true } {
  return { headers: { "Idempotency-Key": crypto.randomUUID() }, again: true };
}

function given<T extends object>(values: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  const kept = Object.entries(values).filter(([, value]) => value !== undefined);
  return Object.fromEntries(kept) as { [K in keyof T]: Exclude<T[K], undefined> };
}
