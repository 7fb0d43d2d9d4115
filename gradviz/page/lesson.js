// A lesson: its questions one after the other. What an open question asks for cannot be seen yet.

const lesson = { open: 0, isAsking: true };

const isAsked = () => Boolean(data.lesson && question() && lesson.isAsking);

const question = () => data.lesson.questions[lesson.open];

// Go to an event of a lesson, in the pass where it is.
async function goToPlace([position, at]) {
  if (app.view.position !== position) await openPass(position);
  select(null);
  goTo(at);
}

function showLesson() {
  const { title, about, questions, say: words } = data.lesson;
  const asked = question();
  const parts = [element("h2", {}, title)];
  if (!asked) parts.push(element("p", {}, words.done));
  else {
    parts.push(element("p", { class: "hint" }, `${lesson.open + 1} / ${questions.length}`), element("p", { class: "asked" }, asked.ask));
    if (!lesson.isAsking) parts.push(element("p", { class: "grad" }, asked.answer), element("p", {}, asked.because));
  }
  const label = !asked ? "" : lesson.isAsking ? words.show : words.next;
  if (!lesson.open && lesson.isAsking) parts.splice(1, 0, element("p", { class: "hint" }, about));
  if (label) parts.push(element("button", { type: "button", id: "lesson-next", onclick: () => goOn() }, label));
  $("lesson").replaceChildren(...parts);
  $("chart").classList.toggle("asking", Boolean(asked));
  $("chart-toggle").classList.toggle("asking", Boolean(asked));
  for (const [id, places] of [["first-nan", ["nan", "inf"]], ["first-error", ["error"]]]) {
    $(id).hidden = Boolean(asked) || !places.some((place) => data.firsts[place]);
  }
  if (app.view.nodes.some((node) => node.error)) {
    app.view.sizes = null; // its box may have a line more now
    draw();
  }
  drawBand();
  showBook();
  tell("asked");
}

// Show the answer to the open question, or go to the next one.
async function goOn() {
  play(false);
  tell("recorded");
  if (lesson.isAsking) {
    const { shown, set } = question();
    lesson.isAsking = false;
    await goToPlace(shown);
    if (set) tell("try", set);
  } else {
    lesson.open += 1;
    lesson.isAsking = true;
    if (question()) await goToPlace(question().stop);
    else book.isShown = data.lesson.small;
  }
  showLesson();
  showNotes();
  tell("select");
}

async function startLesson() {
  if (!data.lesson) return;
  $("lesson").hidden = false;
  held.until = () => (question() ? (lesson.isAsking ? question().at : question().until) : Infinity);
  await goToPlace(question().stop);
  showLesson();
  showNotes();
}
