/*
 * Keeps the parts of a page up to date: each element with data-every asks for itself again after so many seconds.
 *
 * Nothing is asked for while the page can't be seen, while it is paused, or while jobs are ticked in that part. What
 * fails is said in words, what was shown stays, and the next round tries again. Without this script the page is whole;
 * it just doesn't move.
 */
"use strict";

(() => {
  const ROUND = 250; // milliseconds between two looks at what is due
  const PAUSED = "brooq.paused";
  const SIGNED_OUT = "You are signed out: reload the page to sign in.";
  const REASONS = new Map([
    [0, "The server can’t be reached."],
    [401, SIGNED_OUT],
    [403, SIGNED_OUT],
    [404, "This is gone."],
    [503, "The database can’t answer."],
  ]);

  const bar = document.getElementById("live");
  const words = document.getElementById("live-words");
  const button = document.getElementById("live-pause");
  const failures = new Map(); // id of a part -> why it isn't up to date
  const due = new WeakMap(); // part -> when it is asked for next
  let paused = remembered();

  function remembered() {
    try {
      return sessionStorage.getItem(PAUSED) === "yes";
    } catch {
      return false;
    }
  }

  function remember() {
    try {
      sessionStorage.setItem(PAUSED, paused ? "yes" : "no");
    } catch {
      // A browser that keeps nothing for us: the button works on this page alone.
    }
  }

  const parts = () => [...document.querySelectorAll("[data-every]")];
  const isHeld = (part) => part.querySelector("input[name=id]:checked") !== null;

  function round() {
    if (paused || document.hidden) return;
    const now = performance.now();
    for (const part of parts()) {
      const wait = Number(part.dataset.every) * 1000;
      if (!due.has(part)) due.set(part, now + wait);
      if (now < due.get(part) || isHeld(part)) continue;
      due.set(part, now + wait);
      window.htmx.trigger(part, "brooq:due");
    }
  }

  function catchUp() {
    for (const part of parts()) due.set(part, 0);
    round();
  }

  function standing() {
    if (paused) return ["paused", "Paused"];
    for (const reason of failures.values()) return ["failed", `${reason} Trying again.`];
    return parts().some(isHeld) ? ["paused", "Held while jobs are ticked"] : ["live", "Live"];
  }

  function tell() {
    const [state, text] = standing();
    bar.dataset.state = state;
    document.documentElement.classList.toggle("stale", state === "failed");
    if (words.textContent !== text) words.textContent = text; // a screen reader hears of changes, not of rounds
    button.textContent = paused ? "Resume" : "Pause";
  }

  function fail(part, reason) {
    failures.set(part.id, reason);
    tell();
  }

  function showTime(text) {
    const date = new Date(text);
    if (!Number.isNaN(date.getTime())) document.getElementById("live-at").textContent = date.toISOString().slice(11, 19);
  }

  function listen() {
    const { body } = document;
    body.addEventListener("htmx:beforeSwap", ({ detail }) => {
      // What is no part of a page, such as a form to sign in, is not put where one belongs.
      if (detail.xhr.status !== 200 || detail.xhr.getResponseHeader("Brooq-Part") !== null) return;
      detail.shouldSwap = false;
      fail(detail.elt, SIGNED_OUT);
    });
    body.addEventListener("htmx:afterSwap", ({ detail }) => {
      failures.delete(detail.elt.id);
      showTime(detail.xhr.getResponseHeader("Date"));
      tell();
    });
    body.addEventListener("htmx:responseError", ({ detail }) => {
      const { status } = detail.xhr;
      fail(detail.elt, REASONS.get(status) ?? `The server answered ${status}.`);
    });
    for (const name of ["htmx:sendError", "htmx:timeout"]) {
      body.addEventListener(name, ({ detail }) => fail(detail.elt, REASONS.get(0)));
    }
    body.addEventListener("change", tell);
    document.addEventListener("visibilitychange", () => document.hidden || catchUp());
    button.addEventListener("click", () => {
      paused = !paused;
      remember();
      catchUp();
      tell();
    });
  }

  /* One tick for all jobs on the page; the box comes with this script, as it does nothing without. */
  function tickAll(event) {
    if (event.target.id !== "tick-all") return;
    for (const box of document.querySelectorAll("input[name=id]")) box.checked = event.target.checked;
    tell();
  }

  function showTickAll() {
    const all = document.getElementById("tick-all");
    if (all) all.closest("label").hidden = false;
  }

  /* A page that says that the database can't answer looks again by itself. */
  function retry(problem) {
    problem.querySelector(".retry").hidden = false;
    setInterval(async () => {
      if (document.hidden) return;
      const answer = await fetch(location.href, { method: "HEAD" }).catch(() => null);
      if (answer?.ok) location.reload();
    }, Number(problem.dataset.retry) * 1000);
  }

  const problem = document.querySelector("[data-retry]");
  if (problem) retry(problem);
  if (!bar || !window.htmx || !window.Idiomorph) return;

  /* What somebody has opened, ticked or shown stays so, whatever the server would draw. */
  window.Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) =>
    !(
      (name === "open" && element.tagName === "DETAILS") ||
      (name === "checked" && element.tagName === "INPUT") ||
      (name === "hidden" && element.classList.contains("all"))
    );

  listen();
  document.body.addEventListener("change", tickAll);
  document.body.addEventListener("htmx:afterSwap", showTickAll);
  showTickAll();
  document.getElementById("live-at").textContent = bar.dataset.at;
  bar.hidden = false;
  tell();
  setInterval(round, ROUND);
})();
