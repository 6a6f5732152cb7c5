"use strict";

/** Let the header of each column sort the rows: numbers by value, and what is unknown last. */
function sortable(table) {
  const [body] = table.tBodies;
  if (body.rows.length < 2) return;
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const key = ({ cells }) => {
      const text = cells[column].textContent;
      if (text === "-") return null;
      return head.classList.contains("number") ? Number(text.replaceAll(",", "")) : text;
    };
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.ariaSort === "ascending" ? -1 : 1;
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.ariaSort = sign > 0 ? "ascending" : "descending";
      body.append(...[...body.rows].sort((one, other) => compare(key(one), key(other), sign)));
    });
  });
}

function compare(one, other, sign) {
  if (one === null || other === null) return (one === null) - (other === null);
  if (typeof one === "number") return sign * (one - other);
  return sign * one.localeCompare(other, "en", { numeric: true });
}

/** Show the values of the bucket that the pointer, or the arrow keys, are at: a row of the table of the figure. */
function explorable(figure) {
  const plot = figure.querySelector(".plot");
  const table = figure.querySelector("table");
  const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.replace("\u00a0", " "));
  const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent));
  const area = plot.querySelector("svg");
  const step = Number(figure.dataset.step);
  const cursor = plot.appendChild(document.createElement("div"));
  const tip = plot.appendChild(document.createElement("table"));
  cursor.className = "cursor";
  cursor.tabIndex = 0;
  cursor.role = "slider";
  cursor.ariaLabel = `Values of ${plot.ariaLabel}`;
  cursor.ariaValueMin = 1;
  cursor.ariaValueMax = rows.length;
  tip.className = "tip";
  tip.ariaHidden = "true";
  let place = 0;

  const said = (value) => {
    const rate = step > 1 ? Number(value.replaceAll(",", "")) / step : 0;
    return rate ? `${value} (${rate.toLocaleString("en", { maximumSignificantDigits: 3 })}/s)` : value;
  };
  const choose = (wanted) => {
    place = Math.max(0, Math.min(rows.length - 1, wanted));
    const [when, ...values] = rows[place];
    cursor.ariaValueNow = place + 1;
    cursor.ariaValueText = `${when}: ${values.map((value, column) => `${titles[column + 1]} ${said(value)}`).join(", ")}`;
  };
  const show = (wanted) => {
    choose(wanted);
    const [when, ...values] = rows[place];
    tip.replaceChildren();
    tip.createCaption().textContent = when;
    values.forEach((value, column) => {
      const row = tip.insertRow();
      const title = titles[column + 1];
      const swatch = [...plot.querySelectorAll("[data-column]")].find((each) => each.dataset.column === title);
      const name = row.insertCell();
      if (swatch) name.append(swatch.querySelector("i").cloneNode());
      name.append(title);
      row.insertCell().textContent = said(value);
    });
    const share = (place + 0.5) / rows.length;
    cursor.style.setProperty("--at", share);
    cursor.classList.add("shown");
    tip.classList.add("shown");
    const room = plot.clientWidth - tip.offsetWidth;
    const x = area.getBoundingClientRect().left - plot.getBoundingClientRect().left + share * area.clientWidth;
    const left = share < 0.5 ? x + 12 : x - 12 - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, left))}px`;
  };
  const hide = () => {
    cursor.classList.remove("shown");
    tip.classList.remove("shown");
  };
  const under = (event) => {
    const box = area.getBoundingClientRect();
    return Math.floor(((event.clientX - box.left) / box.width) * rows.length);
  };
  const keys = {
    ArrowLeft: () => place - 1,
    ArrowDown: () => place - 1,
    ArrowRight: () => place + 1,
    ArrowUp: () => place + 1,
    PageUp: () => place + 10,
    PageDown: () => place - 10,
    Home: () => 0,
    End: () => rows.length - 1,
  };
  choose(0);
  cursor.addEventListener("pointermove", (event) => show(under(event)));
  cursor.addEventListener("pointerdown", (event) => show(under(event)));
  cursor.addEventListener("pointerleave", hide);
  cursor.addEventListener("focus", () => show(place));
  cursor.addEventListener("blur", hide);
  cursor.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    if (!Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    show(keys[event.key]());
  });
}

document.querySelectorAll("figure").forEach((figure) => figure.querySelector(".plot") && explorable(figure));
document.querySelectorAll("table:not(.tip)").forEach(sortable);
