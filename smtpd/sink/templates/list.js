"use strict";
// Fills the list while the page is visible. Rows that are there stay, and so does the focus.
let tag = "";

async function look() {
  const headers = tag ? { "If-None-Match": tag } : {};
  const answer = await fetch(location.href, { headers, cache: "no-store" });
  if (answer.status !== 200) return;
  tag = answer.headers.get("ETag");
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const rows = [...page.getElementById("mails").rows];
  const list = document.getElementById("mails");
  const names = new Set(rows.map((row) => row.id));
  for (const row of [...list.rows]) if (!names.has(row.id)) row.remove();
  let place = list.firstElementChild;
  for (const row of rows) {
    const known = document.getElementById(row.id);
    if (known && known === place) place = place.nextElementSibling;
    else list.insertBefore(known ?? row, place);
  }
  show(page.getElementById("count").textContent);
  document.title = page.title;
  const pages = page.getElementById("pages");
  const old = document.getElementById("pages");
  if (pages.textContent !== old.textContent) old.replaceChildren(...pages.childNodes);
}

function show(text) {
  const count = document.getElementById("count");
  if (count.textContent !== text) count.textContent = text;
}

async function keep() {
  if (!document.hidden) {
    try {
      await look();
    } catch {
      tag = "";
      show("The sink does not answer.");
    }
  }
  setTimeout(keep, 1000);
}

keep();
