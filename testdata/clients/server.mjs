// Runs bin/strata with its default model for a test file.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const repository = path.resolve(fileURLToPath(import.meta.url), '..', '..', '..');

export const limits = { timeout: 120_000 };

// start runs "strata serve" with settings as environment variables, and returns
// its address once it is ready. stop ends it, and checks that it ends well.
export async function start(settings = {}) {
  const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('STRATA_')));
  const server = spawn(path.join(repository, 'bin', 'strata'), ['serve', '--listen', '127.0.0.1:0'], {
    cwd: repository,
    env: { ...environment, ...settings },
  });
  let output = '';
  const ready = new Promise((resolve, reject) => {
    server.on('error', reject);
    server.on('exit', () => reject(new Error(`strata serve ended early:\n${output}`)));
    server.stdout.on('data', (data) => {
      output += data;
      const line = output.match(/^Strata serves \S+ on (\S+) /m);
      if (line && output.includes('Ctrl-C')) resolve(line[1]);
    });
    server.stderr.on('data', (data) => { output += data; });
  });
  const late = sleep(60_000, null, { ref: false }).then(() => { throw new Error(`strata serve is not ready after 60 s:\n${output}`); });
  let address;
  try {
    address = await Promise.race([ready, late]);
  } catch (error) {
    server.kill('SIGKILL');
    throw error;
  }

  async function stop() {
    const exit = once(server, 'exit');
    server.kill('SIGTERM');
    const ended = await Promise.race([exit, sleep(15_000, null, { ref: false })]);
    if (!ended) server.kill('SIGKILL');
    assert.ok(ended, `strata serve did not end within 15 s of SIGTERM:\n${output}`);
    assert.deepEqual(ended, [0, null], `exit code and signal after SIGTERM:\n${output}`);
  }

  const health = () => fetch(`${address}/health`).then((response) => response.json());

  // idle waits until nothing is computed or queued any more.
  async function idle() {
    for (const end = Date.now() + 10_000; ;) {
      const { running, queued } = await health();
      if (running === 0 && queued === 0) return;
      assert.ok(Date.now() < end, 'the server still works 10 s later');
      await sleep(20);
    }
  }

  return { address, stop, health, idle };
}

// The default model answers this question the same way always.
export const whoAreYou = 'Who are you?';
export const iAmPebble = 'I am Pebble, a small language model.';
