import { ArchilApiError, ArchilError, ArchilS3Error } from "./errors.js";

declare const process: { env: Record<string, string | undefined> } | undefined;

/** Where the server is, and the key. What is left out is taken from the environment. */
export interface ArchilOptions {
  /** Or FORKYARD_KEY, or ARCHIL_API_KEY. */
  apiKey?: string;
  /** Or FORKYARD_URL, or ARCHIL_BASE_URL, as in "http://127.0.0.1:8700". */
  baseUrl?: string;
  /** Where S3 is, if not at the same place. Or ARCHIL_S3_BASE_URL. */
  s3BaseUrl?: string;
}

export type Body = string | Uint8Array | ArrayBuffer | Blob;
type Query = Record<string, string | number | boolean | undefined>;

interface Request {
  query?: Query;
  body?: unknown;
  headers?: Record<string, string>;
  /** Whether it may be sent twice: its answer can be lost, or the server have no room for now. */
  again?: boolean;
}

interface Sent {
  headers: Record<string, string>;
  body?: Body | null;
  again: boolean;
}

interface Envelope {
  success: boolean;
  data?: unknown;
  nextCursor?: string;
  error?: string;
  code?: string;
}

const RETRIES = 3;
const LONGEST_WAIT = 10_000;
const PASSING = new Set([429, 500, 502, 503, 504]);

/** Requests to one server. */
export class Wire {
  readonly #key: string;
  readonly #base: string;
  readonly #s3: string;

  constructor(options: ArchilOptions) {
    this.#key = found("apiKey", options.apiKey, "FORKYARD_KEY", "ARCHIL_API_KEY").replace(/^key-/, "");
    this.#base = found("baseUrl", options.baseUrl, "FORKYARD_URL", "ARCHIL_BASE_URL").replace(/\/+$/, "");
    const s3 = options.s3BaseUrl ?? variable("ARCHIL_S3_BASE_URL");
    this.#s3 = s3?.replace(/\/+$/, "") ?? this.#base.replace("://control.", "://s3.");
  }

  /** The data of an answer of the control plane. */
  async call<T>(method: string, path: string, request: Request = {}): Promise<T> {
    return (await this.#envelope(method, path, request)).data as T;
  }

  /** The data of all pages of a list. */
  async pages<T>(path: string, query: Query, limit = Infinity): Promise<T[]> {
    const all: T[] = [];
    let cursor: string | undefined;
    do {
      const asked = { ...query, limit: Math.min(limit - all.length, 100), cursor };
      const page = await this.#envelope("GET", path, { query: asked });
      all.push(...(page.data as T[]));
      cursor = page.nextCursor;
    } while (cursor !== undefined && all.length < limit);
    return all.slice(0, limit);
  }

  /** An answer of S3, about an object or, with the key "", about a disk. */
  async object(method: string, disk: string, key: string, request: Request & { body?: Body } = {}): Promise<Response> {
    const segments = key.split("/");
    if (segments.some((segment) => segment === "." || segment === "..")) {
      throw new ArchilS3Error(`${key}: "." and ".." are no names`, 400, "InvalidKey"); // fetch would resolve them
    }
    const path = segments.map(encodeURIComponent).join("/");
    const answer = await this.#sent(method, `${this.#s3}/${disk}/${path}${asQuery(request.query)}`, {
      headers: request.headers ?? {},
      body: request.body ?? null,
      again: request.again ?? true,
    });
    if (answer.ok) return answer;
    const text = await answer.text();
    const code = /<Code>([^<]*)<\/Code>/.exec(text)?.[1];
    const told = /<Message>([^<]*)<\/Message>/.exec(text)?.[1] ?? answer.statusText;
    throw new ArchilS3Error(`${method} ${key}: ${unescaped(told)}`, answer.status, code);
  }

  async #envelope(method: string, path: string, request: Request): Promise<Envelope> {
    const json = request.body === undefined ? null : JSON.stringify(request.body);
    const answer = await this.#sent(method, `${this.#base}${path}${asQuery(request.query)}`, {
      headers: { ...request.headers, ...(json === null ? {} : { "Content-Type": "application/json" }) },
      body: json,
      again: request.again ?? method !== "POST",
    });
    const text = await answer.text();
    if (answer.ok && text === "") return { success: true };
    let envelope: Envelope;
    try {
      envelope = JSON.parse(text); // an answer that took long begins with spaces
    } catch {
      throw new ArchilApiError(`${method} ${path} was answered with status ${answer.status} and no JSON`, answer.status);
    }
    if (!envelope.success) {
      // One that took long has the status 200 whatever came of it: then only the body tells.
      throw new ArchilApiError(envelope.error ?? answer.statusText, answer.status, envelope.code);
    }
    return envelope;
  }

  async #sent(method: string, url: string, { headers, body = null, again }: Sent): Promise<Response> {
    const given = { ...headers, Authorization: `key-${this.#key}` };
    for (let attempt = 0; ; attempt++) {
      let wait = Math.random() * Math.min(2000, 100 * 2 ** attempt);
      try {
        const answer = await fetch(url, { method, headers: given, body: body as BodyInit | null });
        if (!again || attempt === RETRIES || !PASSING.has(answer.status)) return answer;
        const seconds = Number(answer.headers.get("Retry-After"));
        if (seconds > 0) wait = Math.min(seconds * 1000, LONGEST_WAIT);
        await answer.body?.cancel();
      } catch (error) {
        if (!again || attempt === RETRIES) {
          const cause = (error as { cause?: { message?: string } }).cause?.message ?? String(error);
          throw new ArchilError(`${method} ${url.split("?")[0]}: ${cause}`, 0, "unreachable");
        }
      }
      await sleep(wait);
    }
  }
}

export function sleep(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/** Text of XML as it was meant. */
export function unescaped(text: string): string {
  const named: Record<string, string> = { lt: "<", gt: ">", amp: "&", quot: '"', apos: "'" };
  return text.replace(/&(?:(lt|gt|amp|quot|apos)|#(\d+)|#x([0-9a-f]+));/gi, (_, name, decimal, hex) =>
    name ? named[name.toLowerCase()]! : String.fromCodePoint(decimal ? Number(decimal) : parseInt(hex, 16)),
  );
}

function asQuery(query: Query = {}): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined);
  return pairs.length ? `?${new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]))}` : "";
}

function found(name: string, given: string | undefined, ...variables: string[]): string {
  const value = given ?? variables.map(variable).find((text) => text);
  if (!value) throw new Error(`no ${name}: give it to Archil or configure, or set ${variables.join(" or ")}`);
  return value;
}

function variable(name: string): string | undefined {
  return typeof process === "undefined" ? undefined : process.env[name] || undefined;
}
