// The picture of a textbook in the place of the graph: gates and wires. It is an image, in which no script runs.

const book = { isShown: false };

function showBook() {
  const text = held.until() < Infinity ? "" : app.view.book; // it has the gradients that are asked for
  const isOpen = Boolean(text) && book.isShown;
  $("book-toggle").hidden = !text;
  $("book-toggle").setAttribute("aria-pressed", String(isOpen));
  $("book").hidden = !isOpen;
  document.querySelector(".zoom").hidden = isOpen;
  $("notes").classList.toggle("behind", isOpen);
  if (!isOpen) return;
  $("book-image").src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(bookAt(text, now()))}`;
  $("book-image").alt = `${app.view.title}, ${said("as gates and wires")}`;
}

// The picture at a step: what is made later is pale and without its texts, and a gradient that comes later is not there.
// It is changed as text: the page's rules forbid a drawing with styles of its own.
function bookAt(text, step) {
  const k = step ? step.k : Infinity;
  return text.split(/(?=<g id="\w+" class="(?:node|edge))/).map((part) => {
    const [made, came] = app.view.bookTimes[part.split('"', 2)[1]] || [0, 0];
    const isEdge = part.includes('class="edge');
    const shown = part.replace(/<text(?: class="(\w+)")?/g, (tag, kind) =>
      made > k || ((isEdge || kind === "grad") && came > k) ? `${tag} visibility="hidden"` : tag);
    return made > k ? shown.replace("<g", '<g opacity="0.3"') : shown;
  }).join("");
}

function toggleBook() {
  if ($("book-toggle").hidden && data.lesson) return say(data.lesson.say.later);
  if (!app.view.book) return say(said("a textbook's picture is for small graphs: this one has too many operations"));
  book.isShown = !book.isShown;
  return showBook();
}

on("view", showBook);
on("step", showBook);
