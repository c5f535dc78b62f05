// The official OpenAI client for Node against bin/strata with its default
// model. Run by "make clients".
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import net from 'node:net';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import OpenAI from 'openai';

const repository = path.resolve(fileURLToPath(import.meta.url), '..', '..', '..');
const limits = { timeout: 120_000 };
const question = { model: 'pebble', temperature: 0, max_tokens: 128, messages: [{ role: 'user', content: 'Who are you?' }] };

let server, output, address, client;

// freePort asks the system for a port that nobody listens on.
async function freePort() {
  const listener = net.createServer();
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port } = listener.address();
  listener.close();
  await once(listener, 'close');
  return port;
}

before(async () => {
  const listen = `127.0.0.1:${await freePort()}`;
  address = `http://${listen}`;
  output = '';
  server = spawn(path.join(repository, 'bin', 'strata'), ['serve', '--listen', listen], { cwd: repository });
  server.stdout.on('data', (data) => { output += data; });
  server.stderr.on('data', (data) => { output += data; });
  for (const end = Date.now() + 60_000; ;) {
    assert.equal(server.exitCode, null, `strata serve ended early:\n${output}`);
    assert.ok(Date.now() < end, `strata serve is not ready after 60 s:\n${output}`);
    const ready = await fetch(`${address}/health`).then((response) => response.ok, () => false);
    if (ready) break;
    await sleep(50);
  }
  client = new OpenAI({ baseURL: `${address}/v1`, apiKey: 'none', maxRetries: 0, timeout: 60_000 });
}, limits);

after(async () => {
  if (!server || server.exitCode !== null) return;
  const exit = once(server, 'exit');
  server.kill('SIGTERM');
  const ended = await Promise.race([exit, sleep(15_000, null, { ref: false })]);
  if (!ended) server.kill('SIGKILL');
  assert.ok(ended, `strata serve did not end within 15 s of SIGTERM:\n${output}`);
  assert.deepEqual(ended, [0, null], `exit code and signal after SIGTERM:\n${output}`);
}, limits);

// answer is the whole text of a choice, thinking included where the server
// sends it apart.
const answer = (message) => (message.reasoning_content ?? '') + (message.content ?? '');

// streamed collects the text, the finish reasons and the usage of a stream.
async function streamed(request) {
  const result = { text: '', finish: [], usage: undefined };
  const stream = await client.chat.completions.create({ ...request, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    assert.equal(chunk.object, 'chat.completion.chunk');
    for (const choice of chunk.choices) {
      result.text += answer(choice.delta);
      if (choice.finish_reason) result.finish.push(choice.finish_reason);
    }
    if (chunk.usage) result.usage = chunk.usage;
  }
  return result;
}

test('the model is listed', limits, async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model);
  assert.equal(models.length, 1);
  assert.equal(models[0].object, 'model');
  assert.match(models[0].id, /pebble/);
});

test('a question is answered', limits, async () => {
  const completion = await client.chat.completions.create(question);
  assert.equal(completion.object, 'chat.completion');
  assert.equal(completion.choices.length, 1);
  assert.equal(completion.choices[0].message.role, 'assistant');
  assert.equal(completion.choices[0].finish_reason, 'stop');
  assert.match(answer(completion.choices[0].message), /I am Pebble/);
  assert.ok(completion.usage.prompt_tokens > 0);
  assert.ok(completion.usage.completion_tokens > 0);
  assert.equal(completion.usage.total_tokens, completion.usage.prompt_tokens + completion.usage.completion_tokens);
});

test('a stream says the same', limits, async () => {
  const whole = await client.chat.completions.create(question);
  const parts = await streamed(question);
  assert.equal(parts.text, answer(whole.choices[0].message));
  assert.deepEqual(parts.finish, ['stop']);
  assert.deepEqual(parts.usage.total_tokens, whole.usage.total_tokens);
});

test('max_tokens ends an answer', limits, async () => {
  const parts = await streamed({ ...question, max_tokens: 3 });
  assert.deepEqual(parts.finish, ['length']);
  assert.equal(parts.usage.completion_tokens, 3);
});

test('requests at the same time get their own answers', limits, async () => {
  const alone = await streamed(question);
  const all = await Promise.all(Array.from({ length: 4 }, () => streamed(question)));
  for (const parts of all) assert.equal(parts.text, alone.text);
});

test('a client that leaves disturbs nobody', limits, async () => {
  const stream = await client.chat.completions.create({ ...question, stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    stream.controller.abort();
    break;
  }
  const parts = await streamed(question);
  assert.match(parts.text, /I am Pebble/);
});

test('a wrong request is refused with a reason', limits, async () => {
  await assert.rejects(client.chat.completions.create({ ...question, temperature: 'hot' }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError, `${error}`);
    assert.match(error.message, /temperature/);
    return true;
  });
});
