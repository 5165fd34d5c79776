// The package as it is published: its examples compile and run in an empty folder.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { promisify } from "node:util";
import { Folder, Server } from "./support/server.js";

const run = promisify(execFile);
const root = new URL("../../", import.meta.url).pathname;

/** The TypeScript examples of a document. */
function examples(document: string): string[] {
  return [...readFileSync(`${root}${document}`, "utf8").matchAll(/^```ts\n(.*?)^```/gms)].map((match) => match[1]!);
}

test("the examples compile and run with the package in an empty folder", async () => {
  using folder = new Folder();
  await using server = await Server.start("--store", "memory:");
  const { stdout } = await run("npm", ["pack", "--json", "--pack-destination", folder.path], { cwd: root });
  const [{ filename, files }] = JSON.parse(stdout.slice(stdout.indexOf("[\n"))) as [{ filename: string; files: { path: string }[] }];
  const paths = files.map(({ path }) => path);
  for (const path of ["dist/index.js", "dist/index.d.ts", "README.md", "LICENSE-MIT", "LICENSE-APACHE"]) assert(paths.includes(path), path);
  assert(!paths.some((path) => /^(src|tests|node_modules)\//.test(path)), paths.join());

  const inside = { cwd: folder.path, env: { ...process.env, npm_config_offline: "true" } };
  writeFileSync(folder.file("package.json"), JSON.stringify({ type: "module" }));
  await run("npm", ["install", "--no-package-lock", "--no-audit", "--no-fund", folder.file(filename)], inside);
  mkdirSync(folder.file("node_modules/@types"));
  symlinkSync(`${root}node_modules/@types/node`, folder.file("node_modules/@types/node"));

  const program = examples("README.md").join("\n").replaceAll("http://127.0.0.1:7420", server.url);
  // Imports may stand only at the top, also those of later examples.
  const imports = program.match(/^import .*$/gm)!;
  writeFileSync(folder.file("readme.ts"), `${imports.join("\n")}\n${program.replace(/^import .*$/gm, "")}`);
  const comparisons = examples("coming-from.md").map((text, index) => `async function example${index}() {\n${text}}\nvoid example${index};`);
  const placeholders = `import { Client } from "forrst";
    declare const forrst: Client;
    declare const signal: AbortSignal;
    declare function step(): Promise<void>;
    declare function save(fence: string): Promise<void>;
    declare function onLockLost(error: unknown): void;`;
  writeFileSync(folder.file("coming-from.ts"), [placeholders, ...comparisons].join("\n"));
  const options = ["--strict", "--target", "es2022", "--module", "nodenext", "--types", "node", "readme.ts", "coming-from.ts"];
  await run(`${root}node_modules/.bin/tsc`, options, inside).catch((error) => assert.fail(error.stdout));

  const { stdout: printed } = await run(process.execPath, ["readme.js"], inside);
  assert.match(printed, /exporting under the fence \d{15} aborted: false/);
  assert.match(printed, /\[ 'lock:account:1', 'lock:rates' \]/);
  assert.match(printed, /\nch_/);
});
