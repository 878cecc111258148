// The recipient's portal: a profile is opened here, and its token is sent to this server only. Nothing is kept.
import { PortalClient } from "./client.js";
import { element, pathOf, problem as problemOf, showTable, time } from "./table.js";

const main = document.getElementById("content");
const opening = document.getElementById("opening");
const problem = document.getElementById("opening-problem");
const drop = document.getElementById("drop");
const file = document.getElementById("profile-file");
const table = document.getElementById("table");
let client = null;
let shown = null;

file.addEventListener("change", () => file.files[0] && open(file.files[0]));
for (const name of ["dragenter", "dragover"]) {
  drop.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
for (const name of ["dragleave", "drop"]) {
  drop.addEventListener(name, () => drop.classList.remove("over"));
}
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files[0]) open(event.dataTransfer.files[0]);
});
document.getElementById("close").addEventListener("click", close);
document.getElementById("filter").addEventListener("input", filter);
// Feeds link to tables: /portal#share.schema.table.
addEventListener("hashchange", () => linkedButton()?.click());

async function open(chosen) {
  problem.hidden = true;
  try {
    const found = await PortalClient.of(await chosen.text(), main.dataset);
    const status = await found.status();
    const shares = await found.catalog();
    client = found;
    showStatus(status);
    showCatalog(shares);
    opening.hidden = true;
    document.getElementById("portal").hidden = false;
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  } finally {
    file.value = "";
  }
}

function close() {
  client = shown = null;
  table.replaceChildren();
  document.getElementById("shares").replaceChildren();
  document.getElementById("filter").value = "";
  document.getElementById("portal").hidden = true;
  document.getElementById("status").hidden = true;
  opening.hidden = false;
  file.focus();
}

function showStatus(status) {
  document.getElementById("recipient-name").textContent = status.recipient;
  const pill = document.getElementById("token-state");
  pill.textContent = status.state;
  pill.className = `pill ${status.state === "valid" ? "good" : "warn"}`;
  document.getElementById("token-ends").textContent = status.message;
  const texts = Object.entries(status.texts || {}).map(([label, text]) => `${label}: ${text}`);
  document.getElementById("recipient-texts").textContent = texts.join(" · ");
  document.getElementById("status").hidden = false;
}

function showCatalog(shares) {
  const template = document.getElementById("share-template");
  const places = shares.map((share) => {
    const place = template.content.cloneNode(true);
    place.querySelector(".share-name").textContent = share.displayName || share.name;
    place.querySelector(".comment").textContent = share.comment || "";
    place.querySelector(".comment").hidden = !share.comment;
    const items = share.tables.map((one) => {
      const item = document.createElement("li");
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = `${one.schema}.${one.name}`;
      button.dataset.path = pathOf(one);
      button.addEventListener("click", () => choose(button, one));
      item.append(button);
      return item;
    });
    place.querySelector(".links").append(...items);
    addNews(place.querySelector(".news"), share.name);
    return place;
  });
  document.getElementById("shares").replaceChildren(...places);
  filter();
  const first = linkedButton() ?? document.querySelector(".links button");
  if (first) first.click();
}

function linkedButton() {
  try {
    return buttonOf(decodeURIComponent(location.hash.slice(1)));
  } catch {
    return undefined; // no link to a table
  }
}

function buttonOf(path) {
  return [...document.querySelectorAll(".links button")].find((button) => button.dataset.path === path);
}

function addNews(news, share) {
  const list = news.querySelector("ol");
  const more = news.querySelector("button");
  let token = null;
  async function load() {
    try {
      const page = await client.news(share, token);
      list.append(...page.items.map((item) => newsItem(item)));
      token = page._lakeshare?.nextPageToken ?? null;
      if (!list.firstChild) list.append(element("li", "quiet", "Nothing was published yet."));
    } catch (error) {
      more.before(problemOf(error));
    }
    more.hidden = token === null;
  }
  news.addEventListener("toggle", () => news.open && !list.firstChild && load());
  more.addEventListener("click", load);
}

function newsItem(item) {
  const { share, schema, table, schemaChanged } = item._lakeshare;
  const place = element("li", "");
  const button = element("button", "", item.title);
  button.type = "button";
  button.addEventListener("click", () => buttonOf(pathOf({ share, schema, name: table }))?.click());
  const when = element("span", "quiet", "");
  when.append(time(Date.parse(item.date_published)), schemaChanged ? " UTC, its columns changed" : " UTC");
  place.append(button, when);
  return place;
}

function filter() {
  const wanted = document.getElementById("filter").value.trim().toLowerCase();
  let found = 0;
  for (const button of document.querySelectorAll(".links button")) {
    const matches = button.textContent.toLowerCase().includes(wanted);
    button.parentElement.hidden = !matches;
    found += matches;
  }
  const nothing = document.getElementById("nothing");
  nothing.hidden = found > 0;
  nothing.textContent = wanted ? "No table has this in its name." : "Nothing is shared with you yet.";
}

async function choose(button, one) {
  // On a phone the table is below the list.
  if (one !== shown && shown && table.getBoundingClientRect().top > innerHeight / 2) table.scrollIntoView();
  shown = one;
  for (const other of document.querySelectorAll(".links button[aria-current]")) {
    other.removeAttribute("aria-current");
  }
  button.setAttribute("aria-current", "true");
  await showTable(table, client, one, () => button.getAttribute("aria-current") === "true");
}
