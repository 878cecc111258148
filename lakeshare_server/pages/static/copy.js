// Buttons that copy code, where the browser lets a page copy.

export function addCopyButtons(root) {
  if (!navigator.clipboard) return;
  for (const block of root.querySelectorAll("pre")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.textContent);
      button.textContent = "Copied";
    });
    block.before(button);
  }
}
