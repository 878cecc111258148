// The activation pages work without this: it saves the profile at once, and adds buttons that copy code.
import { addCopyButtons } from "./copy.js";

document.getElementById("profile")?.click();
addCopyButtons(document);
