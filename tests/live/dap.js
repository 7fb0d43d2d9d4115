// The adapter test kit drives `gradviz dap`: node dap.js KIT PYTHON ADAPTER PROGRAM SOURCE, one line of JSON for each
// answer. KIT is the folder with the kit of npm.
const [kit, python, adapter, program, source] = process.argv.slice(2);
const { DebugClient } = require(`${kit}/node_modules/@vscode/debugadapter-testsupport`);
const say = (what, told) => console.log(JSON.stringify({ what, told }));

async function main() {
  const client = new DebugClient(python, adapter, "gradviz");
  client.defaultTimeout = 60000;
  await client.start();
  const stops = () => client.waitForEvent("stopped");
  const place = async () => {
    const { body } = await client.stackTraceRequest({ threadId: 1 });
    const { name, line } = body.stackFrames[0];
    return { name, line, source: body.stackFrames[0].source };
  };
  const moved = async (request) => {
    const stopped = stops();
    await client.send(request, { threadId: 1 });
    const event = await stopped;
    return { reason: event.body.reason, text: event.body.text, ...(await place()) };
  };
  say("capabilities", (await client.initializeRequest()).body);
  const ready = client.waitForEvent("initialized");
  await client.launch({ program, cwd: require("path").dirname(source) });
  await ready;
  const lines = await client.setBreakpointsRequest({ source: { path: source }, breakpoints: [{ line: 5 }] });
  say("lines", lines.body.breakpoints);
  say("functions", (await client.setFunctionBreakpointsRequest({ breakpoints: [{ name: "log" }, { name: "nothing" }] })).body);
  const entry = stops();
  await client.configurationDoneRequest();
  say("entry", (await entry).body.reason);
  say("continue", await moved("continue"));
  say("continue", await moved("continue"));
  say("next", await moved("next"));
  say("stepIn", await moved("stepIn"));
  say("stepBack", await moved("stepBack"));
  say("reverseContinue", await moved("reverseContinue"));
  const { body } = await client.scopesRequest({ frameId: 1 });
  for (const scope of body.scopes) {
    const { variables } = (await client.variablesRequest({ variablesReference: scope.variablesReference })).body;
    say(scope.name, variables);
    if (scope.name === "Leaves")
      say("leaf", (await client.variablesRequest({ variablesReference: variables[0].variablesReference })).body.variables);
  }
  say("evaluate", (await client.evaluateRequest({ expression: "w" })).body.result);
  say("why", (await client.evaluateRequest({ expression: "why" })).body.result);
  const info = await client.dataBreakpointInfoRequest({ name: "w" });
  say("watched", (await client.setDataBreakpointsRequest({ breakpoints: [{ dataId: info.body.dataId }] })).body.breakpoints);
  await client.setBreakpointsRequest({ source: { path: source }, breakpoints: [] });
  await client.setFunctionBreakpointsRequest({ breakpoints: [] });
  say("data", await moved("continue"));
  const wrong = await client.evaluateRequest({ expression: "no_such" }).catch((error) => error.message);
  say("wrong", wrong);
  await client.disconnectRequest();
  await client.stop();
}

main().catch((error) => {
  say("failed", String(error));
  process.exit(1);
});
