import { SandboxProcessError } from "./errors.js";
import { sleep, type Wire } from "./wire.js";

export type Stream = "stdout" | "stderr";

export interface ProcessOptions {
  /** Added to the variables of the sandbox. */
  env?: Record<string, string>;
  cwd?: string;
  /** After so many seconds the process is killed. */
  timeoutSeconds?: number;
  /** A terminal, of 80 by 24 cells unless it is said; its output is all stdout. */
  terminal?: boolean | { cols: number; rows: number };
  /** Is given all output as it comes. */
  onOutput?: (data: Uint8Array, stream: Stream) => void;
  /** Whether the result has the output; it does unless this is false. */
  collectOutput?: boolean;
}

/** How a process ended. One that timed out, was killed or lost its sandbox has no `exitCode`. */
export interface ProcessResult {
  status: "completed" | "failed" | "cancelled" | "timed_out";
  exitCode?: number;
  exitReason?: string;
  stdout: string;
  stderr: string;
}

type First =
  | { type: "start"; command: string; env?: object; cwd?: string; timeout_seconds?: number; terminal?: unknown }
  | { type: "attach"; process_id: string; offset: number };
type Sink = Pick<ProcessOptions, "onOutput" | "collectOutput">;

const MESSAGE = 1 << 20;
const UNSENT = 4 * MESSAGE;
const ATTEMPTS = 3;

/** A process in a sandbox, looked on at through a socket of its own. It goes on when the socket is closed. */
export class SandboxProcess {
  /** How many bytes of output have come or were missed, of both streams together. */
  cursor = 0;
  /** How many of them were gone before they came here. */
  missed = 0;
  #id = "";
  readonly #end: Promise<ProcessResult>;
  readonly #texts = { stdout: new Text(), stderr: new Text() };

  private constructor(
    private readonly socket: WebSocket,
    private readonly control: (message: object) => Promise<void>,
    private readonly sink: Sink,
    opened: (error?: Error) => void,
  ) {
    this.#end = new Promise((resolve, reject) => {
      const fail = (error: Error) => (opened(error), reject(error));
      socket.onmessage = ({ data }) => {
        try {
          if (typeof data === "string") this.#told(JSON.parse(data), opened, resolve, fail);
          else this.#written(new DataView(data as ArrayBuffer));
        } catch (error) {
          fail(error as Error); // of onOutput, or of a message that is none
          socket.close();
        }
      };
      socket.onclose = ({ code, reason }) =>
        fail(new SandboxProcessError(`the socket was closed (${reason || code}); attach from ${this.cursor} on`));
    });
    this.#end.catch(() => {}); // nobody may be waiting
  }

  get id(): string {
    return this.#id;
  }

  /** Start a command, or attach to a process. */
  static async open(wire: Wire, sandboxId: string, first: First, sink: Sink): Promise<SandboxProcess> {
    const socket = await connected(wire, sandboxId);
    const control = (message: object) => controlled(wire, sandboxId, message);
    return new Promise((resolve, reject) => {
      const opened = (error?: Error) => (error ? reject(error) : resolve(process));
      const process = new SandboxProcess(socket, control, sink, opened);
      if (first.type === "attach") process.cursor = first.offset;
      socket.send(JSON.stringify(first));
    });
  }

  /** Its end. */
  wait(): Promise<ProcessResult> {
    return this.#end;
  }

  /** Write to its stdin; waits while much of what was written is still here. */
  async sendInput(data: string | Uint8Array): Promise<void> {
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    for (let at = 0; at < bytes.length; at += MESSAGE) {
      while (this.socket.bufferedAmount > UNSENT && this.socket.readyState === WebSocket.OPEN) {
        await sleep(5); // a socket tells nobody when it has room
      }
      this.#send(bytes.slice(at, at + MESSAGE));
    }
  }

  /** End its stdin. */
  closeStdin(): void {
    this.#send(JSON.stringify({ type: "close_stdin" }));
  }

  /** Give its terminal another size. */
  resize(cols: number, rows: number): Promise<void> {
    return this.control({ type: "resize", process_id: this.id, cols, rows });
  }

  /** Kill it and all it started. */
  kill(): Promise<void> {
    return this.control({ type: "kill", process_id: this.id });
  }

  /** Look on no more. It goes on. */
  disconnect(): void {
    this.socket.close();
  }

  #send(message: string | Uint8Array): void {
    if (this.socket.readyState !== WebSocket.OPEN) {
      throw new SandboxProcessError(`process ${this.id} has ended, or its socket was closed`);
    }
    this.socket.send(message as string);
  }

  #told(
    message: Record<string, unknown>,
    opened: () => void,
    ended: (result: ProcessResult) => void,
    fail: (error: Error) => void,
  ): void {
    if (message.type === "started" || message.type === "attached") {
      this.#id = String(message.process_id);
      opened();
    } else if (message.type === "exit") {
      ended({
        status: message.status as ProcessResult["status"],
        ...(message.exit_code === undefined ? {} : { exitCode: Number(message.exit_code) }),
        ...(message.exit_reason === undefined ? {} : { exitReason: String(message.exit_reason) }),
        stdout: this.#texts.stdout.whole(),
        stderr: this.#texts.stderr.whole(),
      });
    } else if (message.type === "error") {
      fail(new SandboxProcessError(String(message.message), String(message.error)));
    }
  }

  /** A message is one byte for the stream, eight for the offset of its first byte, and the bytes. */
  #written(message: DataView): void {
    const stream = message.getUint8(0) === 2 ? "stderr" : "stdout";
    const offset = Number(message.getBigUint64(1));
    const bytes = new Uint8Array(message.buffer, 9);
    const known = this.cursor - offset;
    if (known >= bytes.length) return;
    this.missed += Math.max(0, -known);
    const news = known > 0 ? bytes.subarray(known) : bytes;
    this.cursor = offset + bytes.length;
    if (this.sink.collectOutput !== false) this.#texts[stream].add(news);
    this.sink.onOutput?.(news, stream);
  }
}

/** UTF-8 that comes in pieces. */
class Text {
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  readonly #parts: string[] = [];

  add(bytes: Uint8Array): void {
    this.#parts.push(this.#decoder.decode(bytes, { stream: true }));
  }

  whole(): string {
    return this.#parts.join("") + this.#decoder.decode();
  }
}

/** An open socket. Its address is good for one only, so each attempt asks for another. */
async function connected(wire: Wire, sandboxId: string): Promise<WebSocket> {
  if (typeof WebSocket === "undefined") {
    throw new Error("this JavaScript has no WebSocket: use Node 22, or NODE_OPTIONS=--experimental-websocket");
  }
  for (let attempt = 1; ; attempt++) {
    const path = `/api/sandboxes/${sandboxId}/connections`;
    const { url } = await wire.call<{ url: string }>("POST", path, { again: true });
    const socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    const open = await new Promise<boolean>((resolve) => {
      socket.onopen = () => resolve(true);
      socket.onerror = socket.onclose = () => resolve(false);
    });
    socket.onerror = null;
    if (open) return socket;
    if (attempt === ATTEMPTS) throw new SandboxProcessError(`no socket to a process of sandbox ${sandboxId} opens`);
    await sleep(100 * 2 ** attempt);
  }
}

/** Have something done to a process, by a socket of its own. */
async function controlled(wire: Wire, sandboxId: string, message: object): Promise<void> {
  const socket = await connected(wire, sandboxId);
  await new Promise<void>((resolve, reject) => {
    socket.onmessage = ({ data }) => {
      const answer = JSON.parse(String(data));
      if (answer.type === "error") reject(new SandboxProcessError(answer.message, answer.error));
      else resolve();
    };
    socket.onclose = () => reject(new SandboxProcessError("the socket was closed before it was answered"));
    socket.send(JSON.stringify(message));
  });
  socket.close();
}
