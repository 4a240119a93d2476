/** Sandboxes and disks of a Forkyard server. The functions use the server of the environment, or of `configure`. */
import { Archil, type CreateDiskResult, type ListDisksOptions, type ListSandboxesOptions } from "./archil.js";
import type { Disk } from "./disk.js";
import type { CreateSandboxRequest, Sandbox } from "./sandbox.js";
import type { ArchilOptions } from "./wire.js";

export * from "./archil.js";
export * from "./disk.js";
export * from "./errors.js";
export * from "./process.js";
export { Sandbox, type CreateSandboxRequest, type SandboxData, type SandboxMount, type SandboxStatus } from "./sandbox.js";
export type { SandboxFiles } from "./files.js";
export type { ArchilOptions, Body } from "./wire.js";

let shared: Archil | undefined;

function ours(): Archil {
  return (shared ??= new Archil());
}

/** Say which server the functions of this module use. */
export function configure(options: ArchilOptions): void {
  shared = new Archil(options);
}

/** Make a disk; the one of this name, if it is there. */
export function createDisk(request: { name: string; [more: string]: unknown }): Promise<CreateDiskResult> {
  return ours().disks.create(request);
}

export function listDisks(options?: ListDisksOptions): Promise<Disk[]> {
  return ours().disks.list(options);
}

export function getDisk(id: string): Promise<Disk> {
  return ours().disks.get(id);
}

/** Make a sandbox; without `wait`, do not wait until it runs. */
export function createSandbox(request?: CreateSandboxRequest, options?: { wait?: boolean }): Promise<Sandbox> {
  return ours().sandboxes.create(request, options);
}

export function listSandboxes(options?: ListSandboxesOptions): Promise<Sandbox[]> {
  return ours().sandboxes.list(options);
}

export function getSandbox(id: string): Promise<Sandbox> {
  return ours().sandboxes.get(id);
}
