// On paper: the whole picture in light colours, the sentence of the event, and the findings behind it.

let screenTheme = "";

function toPaper() {
  const { w, h } = picture.layout;
  $("graph").setAttribute("viewBox", `-12 -12 ${round(w + 24)} ${round(h + 24)}`);
  $("world").removeAttribute("transform");
  stage.classed("far", false).classed("further", false);
  screenTheme = darkRule().media.mediaText;
  darkRule().media.mediaText = "not all";
  document.body.append($("findings-list"));
}

function toScreen() {
  $("graph").removeAttribute("viewBox");
  look(eye());
  darkRule().media.mediaText = screenTheme;
  document.querySelector("header").append($("findings-list"));
}

window.addEventListener("beforeprint", toPaper);
window.addEventListener("afterprint", toScreen);
