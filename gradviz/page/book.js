// The picture of a textbook in the place of the graph: gates and wires. It is an image, in which no script runs.

const book = { isShown: Boolean(data.book) };

function showBook() {
  const text = app.view.book;
  const isOpen = Boolean(text) && book.isShown;
  $("book-toggle").hidden = !text;
  $("book-toggle").setAttribute("aria-pressed", String(isOpen));
  $("book").hidden = !isOpen;
  document.querySelector(".zoom").hidden = isOpen;
  if (!isOpen) return;
  $("book-image").src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  $("book-image").alt = `${app.view.title}, as gates and wires`;
}

function toggleBook() {
  if (!app.view.book) return say("a textbook's picture is for small graphs: this one has too many operations");
  book.isShown = !book.isShown;
  return showBook();
}

on("view", showBook);
