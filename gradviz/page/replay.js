// Steps through the events of a view: slider, buttons, keys.

const player = { timer: 0 };

function showStep() {
  const step = now();
  const count = app.view.steps.length;
  const slider = $("slider");
  slider.max = Math.max(0, count - 1);
  slider.value = app.step;
  $("sentence").textContent = step ? step.text : said("nothing was recorded");
  const where = step ? `${said("event {event} of {count}", { event: counted(step.k + 1), count: counted(data.events) })} · ${step.phase}` : "";
  $("position").textContent = where;
  slider.setAttribute("aria-valuetext", step ? `${where}: ${step.text}` : "");
  $("replay").classList.toggle("backward", Boolean(step) && step.phase.startsWith("backward"));
  for (const id of ["first", "back"]) $(id).disabled = app.step <= 0;
  for (const id of ["next", "last"]) $(id).disabled = app.step >= count - 1;
  if (step && $("follow").checked && step.ids.length && !app.quiet) bringIntoView(shownAs(step.ids[0]));
}

// The backward passes as a band under the slider, with a tick for each accumulation into a leaf.
function drawBand() {
  const steps = app.view.steps;
  const band = $("band");
  const marks = [];
  const most = Math.max(steps.length - 1, 1);
  let from = -1;
  steps.forEach((step, at) => {
    const backward = step.phase.startsWith("backward");
    if (backward && from < 0) from = at;
    if (from >= 0 && (!backward || at === steps.length - 1)) {
      marks.push(svg("rect", { x: (1000 * from) / most, width: Math.max(2, (1000 * (at - from)) / most), y: 0, height: 6, class: "backward" }));
      from = backward ? from : -1;
    }
    if (step.kind === "error" && step.k <= held.until()) marks.push(svg("rect", { x: (1000 * at) / most - 3, width: 6, y: 0, height: 6, class: "odd" }));
  });
  band.replaceChildren(svg("rect", { x: 0, width: 1000, y: 2.5, height: 1, class: "all" }), ...marks);
}

function play(start = !player.timer) {
  clearInterval(player.timer);
  player.timer = 0;
  if (start) {
    if (app.step >= app.view.steps.length - 1) goTo(0);
    const pause = Math.min(700, Math.max(60, 20000 / app.view.steps.length)) / Number($("speed").value);
    player.timer = setInterval(() => {
      if (app.step >= app.view.steps.length - 1) play(false);
      else goTo(app.step + 1);
    }, pause);
  }
  $("play").classList.toggle("playing", Boolean(player.timer));
  $("play").setAttribute("aria-label", player.timer ? said("Pause") : said("Play"));
}

// The next step in a direction at which a condition becomes true.
function jump(direction, wanted) {
  const steps = app.view.steps;
  for (let at = app.step + direction; at >= 0 && at < steps.length; at += direction) {
    if (wanted(steps[at])) return goTo(at);
  }
  return goTo(direction > 0 ? steps.length - 1 : 0);
}

function startReplay() {
  $("slider").addEventListener("input", () => {
    play(false);
    goTo(Number($("slider").value));
  });
  const acts = { first: () => goTo(0), back: () => goTo(app.step - 1), next: () => goTo(app.step + 1), last: () => goTo(app.view.steps.length - 1) };
  for (const [id, act] of Object.entries(acts)) {
    $(id).addEventListener("click", () => {
      play(false);
      act();
    });
  }
  $("play").addEventListener("click", () => play());
  $("speed").addEventListener("change", () => player.timer && play(true));
}

on("view", () => {
  play(false);
  drawBand();
});
on("step", showStep);
