// LangChain's OpenAI client against bin/strata with its default model. Run by
// "make clients".
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { AIMessage, HumanMessage, SystemMessage } from '@langchain/core/messages';
import { ChatOpenAI, OpenAI } from '@langchain/openai';
import { iAmPebble, limits, start, whoAreYou } from './server.mjs';

let server, chat;

const connect = (options) => new ChatOpenAI({
  model: 'pebble', temperature: 0, maxTokens: 128, maxRetries: 0, apiKey: 'none',
  configuration: { baseURL: `${server.address}/v1` }, ...options,
});

before(async () => {
  server = await start();
  chat = connect();
}, limits);

after(() => server?.stop(), limits);

test('a question is answered', limits, async () => {
  const message = await chat.invoke(whoAreYou);
  assert.equal(message.content, iAmPebble);
  assert.equal(message.response_metadata.finish_reason, 'stop');
  assert.ok(message.usage_metadata.input_tokens > 0);
  assert.ok(message.usage_metadata.output_token_details.reasoning > 0);
  assert.equal(message.usage_metadata.total_tokens, message.usage_metadata.input_tokens + message.usage_metadata.output_tokens);
});

test('a stream says the same', limits, async () => {
  const whole = await chat.invoke(whoAreYou);
  let all;
  let pieces = 0;
  for await (const chunk of await chat.stream(whoAreYou)) {
    all = all ? all.concat(chunk) : chunk;
    if (chunk.content) pieces++;
  }
  assert.equal(all.content, iAmPebble);
  assert.ok(pieces > 1);
  assert.equal(all.usage_metadata.total_tokens, whole.usage_metadata.total_tokens);
});

test('a conversation goes on', limits, async () => {
  const message = await chat.invoke([new SystemMessage('Be kind.'), new HumanMessage(whoAreYou), new AIMessage(iAmPebble), new HumanMessage(whoAreYou)]);
  assert.ok(message.content.length > 0);
});

test('several questions at once get their own answers', limits, async () => {
  const answers = await chat.batch([whoAreYou, 'Hello.', whoAreYou]);
  assert.equal(answers[0].content, iAmPebble);
  assert.equal(answers[2].content, iAmPebble);
  assert.notEqual(answers[1].content, iAmPebble);
});

test('settings reach the model', limits, async () => {
  const stopped = await chat.invoke(whoAreYou, { stop: [' a small'] });
  assert.equal(stopped.content, 'I am Pebble,');
  const { content, response_metadata: { logprobs } } = await connect({ logprobs: true, topLogprobs: 2, modelKwargs: { reasoning_effort: 'none' } }).invoke(whoAreYou);
  assert.equal(logprobs.content.map((token) => token.token).join(''), content);
});

test('text is completed', limits, async () => {
  const model = new OpenAI({ model: 'pebble', temperature: 0, maxTokens: 8, maxRetries: 0, apiKey: 'none', configuration: { baseURL: `${server.address}/v1` } });
  const text = await model.invoke('Once upon a time');
  assert.ok(text.length > 0);
  let streamed = '';
  for await (const piece of await model.stream('Once upon a time')) streamed += piece;
  assert.equal(streamed, text);
});

test('a wrong request is refused with a reason', limits, async () => {
  await assert.rejects(connect({ temperature: 3 }).invoke(whoAreYou), (error) => {
    assert.equal(error.status, 400);
    assert.match(error.message, /temperature/);
    return true;
  });
});
