// The official TypeScript SDK's client against our server: sdk.mjs SDK URL. Prints what it saw.

const [, , sdk, url] = process.argv;
const { Client } = await import(`${sdk}/dist/esm/client/index.js`);
const { StreamableHTTPClientTransport } = await import(`${sdk}/dist/esm/client/streamableHttp.js`);

const headers = { Authorization: `Bearer ${process.env.RECALL_MCP_TOKEN}` };
const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
const client = new Client({ name: "test", version: "1" });
await client.connect(transport);

const call = async (name, given) => (await client.callTool({ name, arguments: given })).content[0].text;

const seen = {
  server: client.getServerVersion().name,
  session: Boolean(transport.sessionId),
  tools: (await client.listTools()).tools.length,
  resumed: JSON.parse(await call("agent_resume", { agent_id: "a" })),
  // At once: the answers find their requests, and the session keeps their order.
  turns: (await Promise.all(
    ["x", "y", "z"].map((content) => call("record_turn", { agent_id: "a", role: "user", content })),
  )).map((text) => JSON.parse(text).seq),
  briefing: (await client.readResource({ uri: "recall://agents/a/briefing" })).contents[0].text,
};
await client.ping();
await transport.terminateSession();
await client.close();

const wrong = { requestInit: { headers: { Authorization: "Bearer wrong" } } };
seen.refused = await new Client({ name: "test", version: "1" })
  .connect(new StreamableHTTPClientTransport(new URL(url), wrong))
  .then(() => "", (problem) => String(problem));
console.log(JSON.stringify(seen));
