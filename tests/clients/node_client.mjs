// The official Node client: a whole reply, a stream, a forced call, and an error. Prints one line of JSON.
import { createRequire } from "node:module";
const require = createRequire(process.env.NODE_PATH + "/");
const OpenAI = require("openai").default ?? require("openai");

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Hello" }];
const whole = await client.chat.completions.create({ model, messages, max_completion_tokens: 6, seed: 1, n: 2 });
let text = "";
let usage = null;
const stream = await client.chat.completions.create({
  model, messages, max_completion_tokens: 6, seed: 1, stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
const tools = [{ type: "function", function: { name: "time", parameters: { type: "object", properties: {} } } }];
const called = await client.chat.completions.create({
  model, messages, tools, tool_choice: "required", parallel_tool_calls: false, max_completion_tokens: 200,
});
const continued = await client.completions.create({ model, prompt: "Once", max_tokens: 4 });
let refused = null;
try {
  await client.chat.completions.create({ model, messages, temperature: 9 });
} catch (error) {
  refused = { name: error.constructor.name, status: error.status, param: error.param };
}
const models = [];
for await (const entry of client.models.list()) models.push(entry.id);
console.log(JSON.stringify({
  whole: whole.choices.map((choice) => choice.message.content), text, usage, refused, models,
  call: called.choices[0].message.tool_calls?.[0]?.function, continued: continued.choices[0].text,
}));
