/** What a server refused, with its HTTP status and, where it has one, a word for programs. */
export class ArchilError extends Error {
  constructor(message: string, readonly status: number, readonly code?: string) {
    super(message);
    this.name = new.target.name;
  }
}

/** A refusal of the control plane. */
export class ArchilApiError extends ArchilError {}

/** A refusal of S3; `code` is S3's, as "NoSuchKey". */
export class ArchilS3Error extends ArchilError {}

/** A sandbox that was asked for does not run. */
export class SandboxStartError extends Error {
  override name = "SandboxStartError";
}

/** The socket of a process was refused or lost; the process itself may go on. */
export class SandboxProcessError extends Error {
  override name = "SandboxProcessError";

  constructor(message: string, readonly code?: string) {
    super(message);
  }
}

/** A file did not get into a sandbox, or out of it. */
export class SandboxFileTransferError extends Error {
  override name = "SandboxFileTransferError";
}
