// A lesson: its questions one after the other. What an open question asks for cannot be seen yet.

const lesson = { open: 0, isAsking: true, given: "" };

// Words that mean the same.
const ALIKE = [["yes", "y", "true", "t", "예", "네", "참"], ["no", "n", "false", "f", "아니오", "아니요", "거짓"], ["none", "null", "nothing", "없음", "없다"]];
const NUMBER = /([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)(?:\s*\/\s*(\d+\.?\d*))?/gi;

const numbersIn = (text) => [...text.replaceAll("−", "-").matchAll(NUMBER)].map(([, over, under]) => Number(over) / Number(under || 1));

// Whether a text is an answer: the same numbers in order, up to one percent, since people round, or a word that means the same.
function isRight(text, answer) {
  const [given, wanted] = [text, answer].map((one) => one.trim().toLowerCase());
  if (given === wanted || ALIKE.some((words) => words.includes(given) && words.includes(wanted))) return true;
  const [own, right] = [numbersIn(given), numbersIn(wanted)];
  return right.length > 0 && own.length === right.length && own.every((one, at) => Math.abs(one - right[at]) <= 0.01 * Math.abs(right[at]) + 1e-9);
}

function verdict({ answer }) {
  if (!lesson.given) return answer;
  const { right, wrong } = data.lesson.say;
  return (isRight(lesson.given, answer) ? right : wrong).replace("{answer}", () => answer);
}

// The keys of the terminal: A answers, Z shows the answer, Space goes on. Returns whether it was one.
function isLessonKey(key) {
  if (!data.lesson || !question()) return false;
  if (key === "A" && lesson.isAsking) $("lesson-answer").focus();
  else if (key === "Z" ? lesson.isAsking : key === " " && !lesson.isAsking) goOn();
  else return false;
  return true;
}

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
    if (!lesson.isAsking) parts.push(element("p", { class: "grad" }, verdict(asked)), element("p", {}, asked.because));
  }
  const label = !asked ? "" : lesson.isAsking ? words.show : words.next;
  if (!lesson.open && lesson.isAsking) parts.splice(1, 0, element("p", { class: "hint" }, about));
  if (asked && lesson.isAsking) {
    const answer = (event) => event.key === "Enter" && event.target.value.trim() && goOn(event.target.value);
    parts.push(element("input", { id: "lesson-answer", type: "text", autocomplete: "off", placeholder: words.field, "aria-label": words.field, onkeydown: answer }));
  }
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

// Show the answer to the open question, with what was answered, or go to the next one.
async function goOn(given = "") {
  play(false);
  lesson.given = given;
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
  fitSmall();
  if (now() && now().ids.length) bringIntoView(shownAs(now().ids[0]), true); // what is asked about is to be read
}
