import { SandboxFileTransferError } from "./errors.js";
import type { Sandbox } from "./sandbox.js";
import type { Body } from "./wire.js";

// The file is there whole, or not at all: it is written beside its place and renamed.
const UPLOAD = `
[ ! -d "$FILE_TARGET" ] || { echo "$FILE_TARGET is a directory" >&2; exit 1; }
mkdir -p -- "$FILE_PARENT" || exit
trap 'rm -f -- "$FILE_TEMP"' EXIT
cat > "$FILE_TEMP" && chmod "$FILE_MODE" "$FILE_TEMP" && mv -f -- "$FILE_TEMP" "$FILE_TARGET"
`;

/** Files of a sandbox that runs. Its image needs sh, cat, chmod, mkdir, mv and rm. */
export class SandboxFiles {
  constructor(private readonly sandbox: Sandbox) {}

  /** Write a file, with the directories it lies in. */
  async uploadFile(data: Body, path: string, { mode = 0o644 }: { mode?: number } = {}): Promise<void> {
    const slash = absolute(path).lastIndexOf("/");
    const parent = path.slice(0, slash) || "/";
    const env = {
      FILE_TARGET: path,
      FILE_PARENT: parent,
      FILE_TEMP: `${parent}/.upload-${crypto.randomUUID()}`,
      FILE_MODE: mode.toString(8),
    };
    const bytes = new Uint8Array(await new Blob([data as BlobPart]).arrayBuffer());
    const process = await this.sandbox.run(UPLOAD, { env });
    try {
      await process.sendInput(bytes);
      process.closeStdin();
    } catch {
      await process.kill().catch(() => {}); // it would wait for the rest; why it has ended is told by its end
    }
    done(path, await process.wait());
  }

  /** The content of a file. */
  async downloadFile(path: string): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    let errors = "";
    const process = await this.sandbox.run('cat -- "$FILE_PATH"', {
      env: { FILE_PATH: absolute(path) },
      collectOutput: false,
      onOutput: (data, stream) => {
        if (stream === "stdout") pieces.push(data);
        else errors += new TextDecoder().decode(data);
      },
    });
    const result = await process.wait();
    done(path, { ...result, stderr: errors });
    if (process.missed) throw new SandboxFileTransferError(`${path}: ${process.missed} bytes of it did not come`);
    return new Uint8Array(await new Blob(pieces as BlobPart[]).arrayBuffer());
  }
}

function absolute(path: string): string {
  if (!path.startsWith("/") || path.endsWith("/")) throw new SandboxFileTransferError(`${path}: give the whole path`);
  return path;
}

function done(path: string, { status, exitCode, stderr }: { status: string; exitCode?: number; stderr: string }): void {
  if (status === "completed" && exitCode === 0) return;
  throw new SandboxFileTransferError(`${path}: ${stderr.trim() || `its command ended with ${exitCode ?? status}`}`);
}
