// Vercel's AI SDK with its provider for OpenAI-compatible servers, against
// bin/strata with its default model. Run by "make clients".
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, generateText, streamText } from 'ai';
import { iAmPebble, limits, start, whoAreYou } from './server.mjs';

let server, model, provider;
const settings = { temperature: 0, maxOutputTokens: 128, maxRetries: 0 };

before(async () => {
  server = await start();
  provider = createOpenAICompatible({ name: 'strata', baseURL: `${server.address}/v1`, includeUsage: true });
  model = provider.chatModel('pebble');
}, limits);

after(() => server?.stop(), limits);

test('a question is answered', limits, async () => {
  const { text, reasoningText, finishReason, usage } = await generateText({ ...settings, model, prompt: whoAreYou });
  assert.equal(text, iAmPebble);
  assert.ok(reasoningText.length > 0);
  assert.equal(finishReason, 'stop');
  assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
  assert.equal(usage.totalTokens, usage.inputTokens + usage.outputTokens);
  assert.ok(usage.outputTokenDetails.reasoningTokens > 0);
});

test('a stream says the same, reasoning apart', limits, async () => {
  const whole = await generateText({ ...settings, model, prompt: whoAreYou });
  const result = streamText({ ...settings, model, prompt: whoAreYou });
  const pieces = [];
  for await (const piece of result.textStream) pieces.push(piece);
  assert.equal(pieces.join(''), iAmPebble);
  assert.ok(pieces.length > 1);
  assert.equal(await result.reasoningText, whole.reasoningText);
  assert.equal(await result.finishReason, 'stop');
  assert.deepEqual((await result.usage).totalTokens, whole.usage.totalTokens);
});

test('settings reach the model', limits, async () => {
  const stopped = await generateText({ ...settings, model, prompt: whoAreYou, stopSequences: [' a small'] });
  assert.equal(stopped.text, 'I am Pebble,');
  const short = await generateText({ ...settings, model, prompt: whoAreYou, maxOutputTokens: 3 });
  assert.equal(short.finishReason, 'length');
  const sample = (seed) => generateText({ ...settings, model, prompt: 'Tell me a story.', temperature: 1.5, seed, maxOutputTokens: 40, providerOptions: { strata: { reasoningEffort: 'none' } } });
  const [first, again, other] = [await sample(1), await sample(1), await sample(2)];
  assert.equal(first.text, again.text);
  assert.notEqual(first.text, other.text);
});

test('a conversation goes on', limits, async () => {
  const messages = [
    { role: 'user', content: whoAreYou },
    { role: 'assistant', content: iAmPebble },
    { role: 'user', content: [{ type: 'text', text: whoAreYou }] },
  ];
  const { text } = await generateText({ ...settings, model, system: 'Be kind.', messages });
  assert.ok(text.length > 0);
});

test('text is completed', limits, async () => {
  const { text, finishReason } = await generateText({ ...settings, model: provider.completionModel('pebble'), prompt: 'Once upon a time', maxOutputTokens: 8 });
  assert.ok(text.length > 0);
  assert.equal(finishReason, 'length');
});

test('a stream is aborted', limits, async () => {
  const controller = new AbortController();
  const result = streamText({ ...settings, model, prompt: whoAreYou, maxOutputTokens: 30_000, providerOptions: { strata: { ignore_eos: true } }, abortSignal: controller.signal });
  let aborted = false;
  for await (const part of result.fullStream) {
    if (part.type === 'text-delta' || part.type === 'reasoning-delta') controller.abort();
    if (part.type === 'abort') aborted = true;
  }
  assert.ok(aborted);
  await server.idle();
});

test('a wrong request is refused with a reason', limits, async () => {
  await assert.rejects(generateText({ ...settings, model, prompt: whoAreYou, temperature: 3 }), (error) => {
    assert.ok(APICallError.isInstance(error), `${error}`);
    assert.equal(error.statusCode, 400);
    assert.equal(error.isRetryable, false);
    assert.match(error.message, /temperature/);
    return true;
  });
});
