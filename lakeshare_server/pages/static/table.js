// One table of the portal: facts, first rows, columns, versions, code. What comes from the server is put in as text.
import { addCopyButtons } from "./copy.js";

const TABS = [
  ["First rows", preview],
  ["Columns", columns],
  ["Versions", versions],
  ["Code", code],
];
const NUMBERS = /^(byte|short|integer|long|float|double|decimal)/;
const number = new Intl.NumberFormat("en");

export async function showTable(place, client, table, isWanted) {
  place.replaceChildren(element("p", "quiet", "Reading…"));
  let facts;
  try {
    facts = await client.about(table, "about");
  } catch (error) {
    if (isWanted()) place.replaceChildren(element("h1", "path", pathOf(table)), problem(error));
    return;
  }
  // After the next click, the table before must not appear.
  if (!isWanted()) return;
  const parts = document.getElementById("table-template").content.cloneNode(true);
  parts.querySelector(".path").textContent = pathOf(facts);
  const comment = parts.querySelector(".comment");
  comment.textContent = facts.comment ?? "";
  comment.hidden = !facts.comment;
  const retired = parts.querySelector(".retired");
  retired.textContent = facts.notice ?? "";
  retired.hidden = !facts.notice;
  parts.querySelector(".restricted").hidden = !facts.restricted;
  parts.querySelector("dl").append(...factsOf(facts));
  addTabs(parts, (show) => show(client, table, facts));
  place.replaceChildren(parts);
}

function factsOf(facts) {
  const entries = [
    ["Version", String(facts.version)],
    ["Published", time(facts.publishedAt)],
    ["Format", facts.format === "iceberg" ? "Apache Iceberg" : "Delta Lake"],
    ["Size", facts.sizeBytes === null ? null : size(facts.sizeBytes)],
    ["Rows", facts.rows === null ? null : number.format(facts.rows)],
    ["Files", facts.files === null ? null : number.format(facts.files)],
    ["History", facts.history ? "shared" : "newest version only"],
  ];
  return entries.filter(([, value]) => value !== null).map(([name, value]) => {
    const pair = document.createElement("div");
    const said = element("dd", "");
    said.append(value);
    pair.append(element("dt", "", name), said);
    return pair;
  });
}

function addTabs(parts, load) {
  const list = parts.querySelector(".tablist");
  const panels = parts.querySelector(".panels");
  const tabs = TABS.map(([name, show], place) => {
    const tab = element("button", "", name);
    const panel = element("div", "about");
    Object.assign(tab, { type: "button", id: `tab-${place}` });
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", `panel-${place}`);
    panel.id = `panel-${place}`;
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    tab.addEventListener("click", () => choose(place));
    list.append(tab);
    panels.append(panel);
    return { tab, panel, show, isLoaded: false };
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const now = tabs.findIndex(({ tab }) => tab === document.activeElement);
    const next = (now + step + tabs.length) % tabs.length;
    choose(next);
    tabs[next].tab.focus();
  });

  function choose(chosen) {
    tabs.forEach((one, place) => {
      one.tab.setAttribute("aria-selected", String(place === chosen));
      one.tab.tabIndex = place === chosen ? 0 : -1;
      one.panel.hidden = place !== chosen;
    });
    const one = tabs[chosen];
    if (one.isLoaded) return;
    one.isLoaded = true;
    one.panel.replaceChildren(element("p", "quiet", "Reading…"));
    load(one.show).then(
      (found) => one.panel.replaceChildren(...found),
      (error) => {
        one.isLoaded = false;
        one.panel.replaceChildren(problem(error));
      },
    );
  }
  choose(0);
}

async function preview(client, table) {
  const found = await client.about(table, "preview");
  if (found.rows.length === 0) return [element("p", "quiet", "There are no rows.")];
  const heads = found.columns.map(({ name, type }) => {
    const head = element("th", NUMBERS.test(type) ? "number" : "", name);
    head.scope = "col";
    head.append(element("small", "", type));
    return head;
  });
  const rows = found.rows.map((row) =>
    row.map((value, place) => {
      const cell = element("td", NUMBERS.test(found.columns[place].type) ? "number" : "");
      cell.append(value === null ? element("span", "null", "null") : value);
      if (value !== null && value.length > 40) cell.title = value;
      return cell;
    }),
  );
  const shown = number.format(found.rows.length);
  const summary = found.hasMore ? `The first ${shown} rows of version ${found.version}.` : `All ${shown} rows of version ${found.version}.`;
  return [element("p", "quiet", summary), grid("First rows", "rows", heads, rows)];
}

async function columns(_client, _table, facts) {
  const hasComments = facts.columns.some((one) => one.comment);
  const heads = ["Column", "Type", "Notes", ...(hasComments ? ["Comment"] : [])].map((name) => heading(name));
  const rows = facts.columns.map((one) => {
    const notes = [one.partition && "partition", !one.nullable && "never null"].filter(Boolean).join(", ");
    const name = element("th", "", one.name);
    name.scope = "row";
    const type = element("td", "");
    type.append(element("code", "", one.type));
    return [name, type, element("td", "", notes), ...(hasComments ? [element("td", "", one.comment ?? "")] : [])];
  });
  return [grid("Columns", "", heads, rows)];
}

async function versions(client, table) {
  const notes = [element("p", "quiet", "")];
  const heads = ["Version", "Published", "Files", "Rows"].map((name, place) => heading(name, place > 1 ? "number" : ""));
  const box = grid("Versions", "", heads, []);
  const more = element("button", "", "Earlier versions");
  more.type = "button";
  let before = null;
  async function load() {
    const found = await client.about(table, "versions", before === null ? "" : `?before=${before}`);
    notes[0].textContent = found.history
      ? "Each publication, the newest first, and what it changed."
      : "The history of this table is not shared: you read its newest version.";
    for (const one of found.versions) addRow(box.querySelector("tbody"), versionCells(one));
    before = found.before;
    more.hidden = before === null;
  }
  more.addEventListener("click", () => load().catch((error) => more.before(problem(error))));
  await load();
  return [...notes, box, more];
}

function versionCells(one) {
  const name = element("th", "", String(one.version));
  name.scope = "row";
  const published = element("td", "");
  published.append(time(one.publishedAt));
  if (!one.changes) return [name, published, element("td", "number quiet", "–"), element("td", "number quiet", "–")];
  if (one.changes.refusal) {
    const cell = element("td", "quiet", one.changes.refusal);
    cell.colSpan = 2;
    return [name, published, cell];
  }
  const { filesAdded, filesRemoved, rows } = one.changes;
  const files = element("td", "number");
  files.append(element("span", "added", `+${number.format(filesAdded)}`), " ", element("span", "removed", `−${number.format(filesRemoved)}`));
  const net = rows === null ? "–" : `${rows < 0 ? "−" : "+"}${number.format(Math.abs(rows))}`;
  return [name, published, files, element("td", `number ${rows < 0 ? "removed" : rows > 0 ? "added" : "quiet"}`, net)];
}

async function code(client, table) {
  const { snippets } = await client.about(table, "code");
  return snippets.map(({ title, text, refusal }) => {
    const part = document.createElement("details");
    part.name = "tool";
    part.open = title === snippets[0].title;
    part.append(element("summary", "", title));
    const body = element("div", "panel shown");
    if (text === null) {
      body.append(element("p", "quiet", `${title} cannot read this table: ${refusal}`));
    } else {
      const block = document.createElement("pre");
      block.tabIndex = 0;
      block.setAttribute("role", "region");
      block.setAttribute("aria-label", `Code for ${title}`);
      block.append(element("code", "", text));
      body.append(block);
      addCopyButtons(body);
    }
    part.append(body);
    return part;
  });
}

function grid(label, kind, heads, rows) {
  const box = element("div", "scroll");
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", label);
  const table = element("table", kind);
  const head = document.createElement("thead");
  const body = document.createElement("tbody");
  addRow(head, heads);
  for (const cells of rows) addRow(body, cells);
  table.append(head, body);
  box.append(table);
  return box;
}

function addRow(part, cells) {
  const row = document.createElement("tr");
  row.append(...cells);
  part.append(row);
}

function heading(name, kind = "") {
  const head = element("th", kind, name);
  head.scope = "col";
  return head;
}

export function problem(error) {
  const alert = element("p", "problem", error.message);
  alert.setAttribute("role", "alert");
  return alert;
}

export function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}

export function pathOf({ share, schema, name }) {
  return `${share}.${schema}.${name}`;
}

export function time(ms) {
  const at = new Date(ms);
  const made = element("time", "", `${at.toISOString().slice(0, 16).replace("T", " ")}`);
  made.dateTime = at.toISOString();
  return made;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const step = bytes < 1024 ? 0 : Math.min(units.length - 1, Math.floor(Math.log(bytes) / Math.log(1024)));
  const value = bytes / 1024 ** step;
  return `${step === 0 ? value : value.toPrecision(3)} ${units[step]}`;
}
