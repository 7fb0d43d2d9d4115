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
  $("book-image").src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  $("book-image").alt = `${app.view.title}, ${said("as gates and wires")}`;
}

function toggleBook() {
  if ($("book-toggle").hidden && data.lesson) return say(data.lesson.say.later);
  if (!app.view.book) return say(said("a textbook's picture is for small graphs: this one has too many operations"));
  book.isShown = !book.isShown;
  return showBook();
}

on("view", showBook);
