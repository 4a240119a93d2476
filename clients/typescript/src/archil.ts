import { Disk, type DiskData, type ExecResult } from "./disk.js";
import { createSandbox, Sandbox, type CreateSandboxRequest, type SandboxData } from "./sandbox.js";
import { Wire, type ArchilOptions } from "./wire.js";

export interface ListDisksOptions {
  /** The whole name of one. */
  name?: string;
  limit?: number;
}

export interface CreateDiskResult {
  disk: Disk;
  /** Of a disk that was there before, nobody is told a token. */
  token: string | null;
}

export interface ListSandboxesOptions {
  /** Those that mount this disk. */
  disk?: Disk | string;
  /** Those with this label: "key" or "key=value". */
  label?: string;
}

export interface ApiKey {
  id: string;
  name: string;
  /** Shown once, when it is made. */
  token?: string;
  [more: string]: unknown;
}

/** A disk of a command over several, or a part of one. */
export type ExecMount = Disk | string | { disk: Disk | string; subdirectory?: string; readOnly?: boolean };

/** A server, and a key for it. */
export class Archil {
  readonly #wire: Wire;

  readonly disks = {
    create: (request: { name: string; [more: string]: unknown }) => this.#createDisk(request),
    list: async ({ name, limit }: ListDisksOptions = {}): Promise<Disk[]> =>
      (await this.#wire.pages<DiskData>("/api/disks", { name }, limit)).map((data) => new Disk(this.#wire, data)),
    get: async (id: string): Promise<Disk> => new Disk(this.#wire, await this.#wire.call("GET", `/api/disks/${id}`)),
  };

  readonly sandboxes = {
    /** Without `wait`, do not wait until it runs. */
    create: (request: CreateSandboxRequest = {}, { wait = true }: { wait?: boolean } = {}): Promise<Sandbox> =>
      createSandbox(this.#wire, request, wait),
    list: async ({ disk, label }: ListSandboxesOptions = {}): Promise<Sandbox[]> => {
      const query = { filesystem: disk === undefined ? undefined : idOf(disk), label };
      const { sandboxes } = await this.#wire.call<{ sandboxes: SandboxData[] }>("GET", "/api/sandboxes", { query });
      return sandboxes.map((data) => new Sandbox(this.#wire, data));
    },
    get: async (id: string): Promise<Sandbox> =>
      new Sandbox(this.#wire, await this.#wire.call("GET", `/api/sandboxes/${id}`)),
  };

  readonly tokens = {
    list: async (): Promise<ApiKey[]> =>
      (await this.#wire.call<{ tokens: ApiKey[] }>("GET", "/api/tokens")).tokens,
    create: (request: { name: string; description?: string }): Promise<ApiKey> =>
      this.#wire.call("POST", "/api/tokens", { body: request }),
    delete: async (id: string): Promise<void> => {
      await this.#wire.call("DELETE", `/api/tokens/${id}`);
    },
  };

  constructor(options: ArchilOptions = {}) {
    this.#wire = new Wire(options);
  }

  /** Run a command over several disks, each a directory of /mnt/archil. */
  exec({ disks, command }: { disks: Record<string, ExecMount>; command: string }): Promise<ExecResult> {
    const entries = Object.entries(disks).map(([path, mount]) => [path, asMount(mount)]);
    return this.#wire.call("POST", "/api/exec", { body: { disks: Object.fromEntries(entries), command } });
  }

  async #createDisk(request: { name: string }): Promise<CreateDiskResult> {
    type Created = { diskId: string; authorizedUsers?: { token?: string }[] };
    const created = await this.#wire.call<Created>("POST", "/api/disks", { body: request, again: true });
    const token = created.authorizedUsers?.find((user) => user.token)?.token ?? null;
    return { disk: await this.disks.get(created.diskId), token };
  }
}

function idOf(disk: Disk | string): string {
  return typeof disk === "string" ? disk : disk.id;
}

function asMount(mount: ExecMount): unknown {
  if (typeof mount === "string" || mount instanceof Disk) return idOf(mount);
  return { ...mount, disk: idOf(mount.disk) };
}
