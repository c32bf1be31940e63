"use strict";
// Filters rules by outcome, consumers by side, and groups; without this script all of them are shown.
(() => {
  const form = document.getElementById("filters");
  const groups = [...document.querySelectorAll("details.group")];
  const fold = document.getElementById("fold");

  const chosen = (name) => new Set([...form.querySelectorAll(`[name=${name}]:checked`)].map((box) => box.value));

  const apply = () => {
    const outcomes = chosen("outcome");
    const sides = chosen("side");
    let shown = 0;
    let all = 0;
    for (const group of groups) {
      let inGroup = 0;
      for (const cell of group.querySelectorAll("[data-side]")) cell.hidden = !sides.has(cell.dataset.side);
      for (const row of group.querySelectorAll("tbody tr")) {
        const fits = [...row.querySelectorAll("td")].some(
          (cell) => !cell.hidden && [...outcomes].some((outcome) => cell.classList.contains(outcome)),
        );
        row.hidden = !fits;
        inGroup += fits;
        all += 1;
      }
      const wanted = form.group.value === "" || form.group.value === group.dataset.group;
      group.hidden = !wanted || inGroup === 0;
      if (!group.hidden) shown += inGroup;
    }
    document.getElementById("shown").textContent = `${shown} of ${all} rules`;
    document.getElementById("nothing").hidden = shown > 0;
  };

  fold.addEventListener("click", () => {
    const folded = groups.every((group) => !group.open);
    for (const group of groups) group.open = folded;
    fold.textContent = folded ? "Fold all" : "Unfold all";
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && document.activeElement.closest("td")) document.activeElement.blur();
  });
  form.addEventListener("change", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  apply();
})();
