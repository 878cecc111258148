// The console works without this: it adds buttons that copy code, and asks again before a change that removes something.
import { addCopyButtons } from "./copy.js";

addCopyButtons(document);

for (const form of document.querySelectorAll("form[data-confirm]")) {
  form.addEventListener("submit", (event) => {
    if (!window.confirm(form.dataset.confirm)) event.preventDefault();
  });
}
