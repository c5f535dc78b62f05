// The official OpenAI client for Node against bin/strata with its default
// model. Run by "make clients".
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import OpenAI from 'openai';
import { iAmPebble, limits, start, whoAreYou } from './server.mjs';

const question = { model: 'pebble', temperature: 0, max_tokens: 128, messages: [{ role: 'user', content: whoAreYou }] };
const endless = { ...question, max_tokens: 30_000, ignore_eos: true };

let server, client;

const connect = (options) => new OpenAI({ baseURL: `${server.address}/v1`, apiKey: 'none', maxRetries: 0, timeout: 60_000, ...options });

before(async () => {
  server = await start();
  client = connect();
}, limits);

after(() => server?.stop(), limits);

// answer is the whole text of a choice, thinking included.
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

// fails checks how a request is refused.
async function fails(promise, { kind, status, code, type, param, message }) {
  await assert.rejects(promise, (error) => {
    assert.ok(error instanceof kind, `${error.constructor.name}: ${error}`);
    assert.equal(error.status, status);
    if (code !== undefined) assert.equal(error.code, code);
    if (type !== undefined) assert.equal(error.type, type);
    if (param !== undefined) assert.equal(error.param, param);
    if (message) assert.match(error.message, message);
    return true;
  });
}

test('the model is listed', limits, async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model);
  assert.equal(models.length, 1);
  assert.equal(models[0].object, 'model');
  assert.match(models[0].id, /pebble/);
  const model = await client.models.retrieve(models[0].id);
  assert.equal(model.id, models[0].id);
  await fails(client.models.retrieve('another'), { kind: OpenAI.NotFoundError, status: 404, code: 'model_not_found' });
});

test('a question is answered', limits, async () => {
  const completion = await client.chat.completions.create(question);
  assert.equal(completion.object, 'chat.completion');
  assert.equal(completion.choices.length, 1);
  assert.equal(completion.choices[0].message.role, 'assistant');
  assert.equal(completion.choices[0].message.content, iAmPebble);
  assert.ok(completion.choices[0].message.reasoning_content.length > 0);
  assert.equal(completion.choices[0].message.refusal, null);
  assert.equal(completion.choices[0].logprobs, null);
  assert.equal(completion.choices[0].finish_reason, 'stop');
  const { usage } = completion;
  assert.ok(usage.prompt_tokens > 0);
  assert.ok(usage.completion_tokens > 0);
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
  assert.ok(usage.completion_tokens_details.reasoning_tokens > 0);
  assert.ok(usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens);
  assert.equal(typeof usage.prompt_tokens_details.cached_tokens, 'number');
});

test('a stream says the same', limits, async () => {
  const whole = await client.chat.completions.create(question);
  const parts = await streamed(question);
  assert.equal(parts.text, answer(whole.choices[0].message));
  assert.deepEqual(parts.finish, ['stop']);
  assert.equal(parts.usage.total_tokens, whole.usage.total_tokens);
});

test('chunks come in the order that the API documents', limits, async () => {
  const chunks = [];
  for await (const chunk of await client.chat.completions.create({ ...question, stream: true, stream_options: { include_usage: true } })) chunks.push(chunk);
  assert.deepEqual(chunks[0].choices[0].delta.role, 'assistant');
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.deepEqual(chunks.at(-2).choices[0].delta, {});
  assert.equal(chunks.at(-2).choices[0].finish_reason, 'stop');
  for (const chunk of chunks.slice(0, -2)) assert.equal(chunk.choices[0].finish_reason, null);
  for (const chunk of chunks.slice(0, -1)) assert.equal(chunk.usage, null);
  assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
  for await (const chunk of await client.chat.completions.create({ ...question, stream: true })) assert.ok(!('usage' in chunk));
});

test('the stream helper collects an answer', limits, async () => {
  const pieces = [];
  const stream = client.chat.completions.stream(question).on('content', (piece) => pieces.push(piece));
  assert.equal(await stream.finalContent(), iAmPebble);
  assert.equal(pieces.join(''), iAmPebble);
  assert.ok(pieces.length > 1);
});

test('max_tokens and max_completion_tokens end an answer', limits, async () => {
  for (const limit of ['max_tokens', 'max_completion_tokens']) {
    const { max_tokens: _, ...rest } = question;
    const parts = await streamed({ ...rest, [limit]: 3 });
    assert.deepEqual(parts.finish, ['length']);
    assert.equal(parts.usage.completion_tokens, 3);
  }
});

test('reasoning can be left out', limits, async () => {
  const completion = await client.chat.completions.create({ ...question, reasoning_effort: 'none' });
  assert.equal(completion.choices[0].message.reasoning_content, undefined);
  assert.equal(completion.choices[0].message.content, iAmPebble);
  assert.equal(completion.usage.completion_tokens_details.reasoning_tokens, 0);
});

test('stop strings end an answer and are not part of it', limits, async () => {
  for (const stop of [' a small', ['never said', ' a small']]) {
    const completion = await client.chat.completions.create({ ...question, stop });
    assert.equal(completion.choices[0].message.content, 'I am Pebble,');
    assert.equal(completion.choices[0].finish_reason, 'stop');
    const parts = await streamed({ ...question, stop, reasoning_effort: 'none' });
    assert.equal(parts.text, 'I am Pebble,');
    assert.deepEqual(parts.finish, ['stop']);
  }
});

test('log-probabilities describe every token', limits, async () => {
  const request = { ...question, reasoning_effort: 'none', logprobs: true, top_logprobs: 3 };
  const completion = await client.chat.completions.create(request);
  const whole = completion.choices[0].logprobs.content;
  assert.equal(whole.map((token) => token.token).join(''), iAmPebble);
  assert.equal(Buffer.from(whole.flatMap((token) => token.bytes)).toString(), iAmPebble);
  for (const token of whole) {
    assert.ok(token.logprob <= 0);
    assert.equal(token.top_logprobs.length, 3);
    assert.equal(token.top_logprobs[0].token, token.token);
    assert.ok(token.top_logprobs[0].logprob >= token.top_logprobs[1].logprob);
  }
  const parts = [];
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    for (const choice of chunk.choices) parts.push(...(choice.logprobs?.content ?? []));
  }
  assert.deepEqual(parts, whole);
});

test('several choices are told apart', limits, async () => {
  const request = { ...question, n: 3, temperature: 1.5, seed: 7, max_tokens: 20, reasoning_effort: 'none', messages: [{ role: 'user', content: 'Tell me a story.' }] };
  const whole = await client.chat.completions.create(request);
  assert.deepEqual(whole.choices.map((choice) => choice.index), [0, 1, 2]);
  const texts = whole.choices.map((choice) => choice.message.content);
  assert.ok(new Set(texts).size > 1, `${texts}`);
  const parts = ['', '', ''];
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    for (const choice of chunk.choices) parts[choice.index] += choice.delta.content ?? '';
  }
  assert.deepEqual(parts, texts);
});

test('a seed makes answers repeatable', limits, async () => {
  const sample = async (seed) => {
    const completion = await client.chat.completions.create({ ...question, temperature: 1.5, seed, max_tokens: 40, reasoning_effort: 'none', messages: [{ role: 'user', content: 'Tell me a story.' }] });
    return completion.choices[0].message.content;
  };
  const [first, again, other] = [await sample(1), await sample(1), await sample(2)];
  assert.equal(first, again);
  assert.notEqual(first, other);
});

test('text is completed', limits, async () => {
  const request = { model: 'pebble', prompt: 'Once upon a time', temperature: 0, max_tokens: 16 };
  const whole = await client.completions.create(request);
  assert.equal(whole.object, 'text_completion');
  assert.ok(whole.choices[0].text.length > 0);
  assert.equal(whole.choices[0].finish_reason, 'length');
  assert.equal(whole.usage.completion_tokens, 16);
  let text = '';
  for await (const chunk of await client.completions.create({ ...request, stream: true })) text += chunk.choices[0]?.text ?? '';
  assert.equal(text, whole.choices[0].text);
  const echoed = await client.completions.create({ ...request, echo: true });
  assert.equal(echoed.choices[0].text, request.prompt + text);
  const two = await client.completions.create({ ...request, prompt: [request.prompt, 'The sea'] });
  assert.deepEqual(two.choices.map((choice) => choice.index), [0, 1]);
  assert.equal(two.choices[0].text, text);
  const { logprobs } = (await client.completions.create({ ...request, logprobs: 2 })).choices[0];
  assert.equal(logprobs.tokens.join(''), text);
  assert.equal(logprobs.token_logprobs.length, 16);
  const stopped = await client.completions.create({ ...request, stop: text.slice(5, 8) });
  assert.equal(stopped.choices[0].text, text.slice(0, text.indexOf(text.slice(5, 8))));
  assert.equal(stopped.choices[0].finish_reason, 'stop');
});

test('requests at the same time get their own answers', limits, async () => {
  const alone = await streamed(question);
  const all = await Promise.all(Array.from({ length: 4 }, () => streamed(question)));
  for (const parts of all) assert.equal(parts.text, alone.text);
});

test('a client that leaves a stream frees the server', limits, async () => {
  const stream = await client.chat.completions.create({ ...endless, stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    assert.equal((await server.health()).running, 1);
    stream.controller.abort();
    break;
  }
  await server.idle();
});

test('a client that leaves before its answer frees the server', limits, async () => {
  const controller = new AbortController();
  const request = client.chat.completions.create(endless, { signal: controller.signal });
  while ((await server.health()).running === 0);
  controller.abort();
  await assert.rejects(request, OpenAI.APIUserAbortError);
  await server.idle();
  await assert.rejects(client.chat.completions.create(endless, { timeout: 300 }), OpenAI.APIConnectionTimeoutError);
  await server.idle();
});

test('wrong requests are refused with a reason', limits, async () => {
  const wrong = { kind: OpenAI.BadRequestError, status: 400, type: 'invalid_request_error' };
  const create = (change) => client.chat.completions.create({ ...question, ...change });
  await fails(create({ temperature: 'hot' }), { ...wrong, code: 'invalid_type', param: 'temperature', message: /temperature/ });
  await fails(create({ temperature: 3 }), { ...wrong, code: 'invalid_value', param: 'temperature' });
  await fails(create({ n: 0 }), { ...wrong, param: 'n' });
  await fails(create({ top_logprobs: 2 }), { ...wrong, param: 'top_logprobs' });
  await fails(create({ messages: [] }), { ...wrong, param: 'messages' });
  await fails(create({ messages: undefined }), { ...wrong, code: 'missing_required_parameter', param: 'messages' });
  await fails(create({ messages: [{ role: 'nobody', content: 'a' }] }), { ...wrong, param: 'messages[0].role' });
  await fails(create({ stop: [''] }), { ...wrong, param: 'stop' });
  await fails(create({ web_search_options: {} }), { ...wrong, code: 'unsupported_value', param: 'web_search_options' });
  await fails(create({ reasoning_effort: 'enormous' }), { ...wrong, param: 'reasoning_effort' });
  await fails(client.completions.create({ model: 'pebble' }), { ...wrong, code: 'missing_required_parameter', param: 'prompt' });
  await fails(client.chat.completions.create({ ...question, stream: true, n: 0 }), { ...wrong, param: 'n' });
  await fails(create({ messages: [{ role: 'user', content: 'many words '.repeat(40_000) }] }), { ...wrong, code: 'context_length_exceeded', message: /32768/ });
  await fails(client.post('/chat/completions', { body: '{"messages": [' }), { ...wrong, message: /JSON/ });
  await fails(client.post('/nowhere', { body: {} }), { kind: OpenAI.NotFoundError, status: 404 });
  await fails(client.get('/chat/completions'), { kind: OpenAI.APIError, status: 405 });
});

test('a large body is refused', limits, async () => {
  const content = 'x'.repeat(33 << 20);
  await fails(client.chat.completions.create({ ...question, messages: [{ role: 'user', content }] }), { kind: OpenAI.APIError, status: 413 });
});

test('where there is no room, a client waits and tries again', limits, async () => {
  const small = await start({ STRATA_MAX_SEQUENCES: '1', STRATA_QUEUE_LIMIT: '0' });
  try {
    const once = connect({ baseURL: `${small.address}/v1` });
    const stream = await once.chat.completions.create({ ...endless, stream: true });
    const chunks = stream[Symbol.asyncIterator]();
    await chunks.next();
    await fails(once.chat.completions.create(question), { kind: OpenAI.InternalServerError, status: 503, code: 'queue_full' });
    const patient = connect({ baseURL: `${small.address}/v1`, maxRetries: 5 });
    const waiting = patient.chat.completions.create(question);
    setTimeout(() => stream.controller.abort(), 500);
    const completion = await waiting;
    assert.equal(completion.choices[0].message.content, iAmPebble);
  } finally {
    await small.stop();
  }
});

test('where keys are asked for, one is needed', limits, async () => {
  const locked = await start({ STRATA_SERVER__API_KEYS: '["first-key", "second-key"]' });
  try {
    const baseURL = `${locked.address}/v1`;
    await fails(connect({ baseURL }).chat.completions.create(question), { kind: OpenAI.AuthenticationError, status: 401, code: 'invalid_api_key' });
    await fails(connect({ baseURL }).models.list(), { kind: OpenAI.AuthenticationError, status: 401 });
    for (const apiKey of ['first-key', 'second-key']) {
      const completion = await connect({ baseURL, apiKey }).chat.completions.create(question);
      assert.equal(completion.choices[0].message.content, iAmPebble);
    }
  } finally {
    await locked.stop();
  }
});

test('a server that is stopped lets answers finish', limits, async () => {
  const ending = await start();
  const stream = await connect({ baseURL: `${ending.address}/v1` }).chat.completions.create({ ...endless, max_tokens: 100, stream: true });
  let stopped, finish;
  for await (const chunk of stream) {
    stopped ??= ending.stop();
    finish = chunk.choices[0]?.finish_reason ?? finish;
  }
  assert.equal(finish, 'length');
  await stopped;
});
