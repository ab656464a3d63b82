// Bands of times below the players: a click takes both there; arrow keys go from one time of a band to the next. A
// part to be done again is dragged, or is that of an alarm, or, with Enter, that of any band.
(() => {
  const DRAG_PX = 4; // a shorter movement is a click
  const INSIDE_S = 0.001; // a player at the very begin of a picture may show the one before
  const bands = () => document.querySelector("#compare .bands");
  const player = () => document.querySelector("#compare #after");
  const times = (track) => [...track.querySelectorAll("rect")].map((rect) => rect.dataset);
  const at = () => player().currentTime - INSIDE_S;

  function go(time_s) {
    player().currentTime = time_s + INSIDE_S;
    show();
  }

  function show() {
    if (!bands()) return;
    mark();
    const [now_s, lasts_s] = [at(), Number(bands().dataset.lasts)];
    bands().style.setProperty("--at", Math.min(1, Math.max(0, now_s / lasts_s)));
    for (const track of bands().querySelectorAll(".track")) {
      const rects = [...track.querySelectorAll("rect")];
      const one = rects.find(({ dataset }) => Number(dataset.start) <= now_s + 0.005 && now_s < Number(dataset.end));
      track.setAttribute("aria-valuenow", now_s.toFixed(2));
      track.setAttribute("aria-valuetext", one?.textContent ?? `${now_s.toFixed(1)} s: none`);
    }
  }

  const field = (name) => document.querySelector(`#redo-${name} input`);
  const lasts = () => Number(bands().dataset.lasts);
  const is_alarm = (part) => part.closest(".alarm");

  // The part that is chosen, which the fields show, and the bands show what the fields have.
  function choose(start_s, end_s) {
    const begins_s = Math.max(0, Math.min(start_s, end_s));
    const ends_s = Math.min(lasts(), Math.max(start_s, end_s));
    fill("from", Math.floor(100 * begins_s) / 100);
    fill("until", Math.min(Math.ceil(100 * ends_s) / 100, Math.floor(100 * lasts()) / 100));
  }
  function fill(name, time_s) {
    if (!field(name)) return;
    field(name).value = time_s.toFixed(2);
    field(name).dispatchEvent(new Event("input", { bubbles: true }));
  }
  function mark() {
    const [from, until] = [Number(field("from")?.value), Number(field("until")?.value)];
    bands()?.style.setProperty("--from", from / lasts() || 0);
    bands()?.style.setProperty("--until", until / lasts() || 0);
  }

  function time_at(track, clientX) {
    const { left, width } = track.getBoundingClientRect();
    return (lasts() * (clientX - left)) / width;
  }

  let drag = null;
  let dragged = false;
  document.addEventListener("pointerdown", ({ target, clientX }) => {
    const track = target.closest?.("#compare .track");
    drag = track && { track, clientX, start_s: time_at(track, clientX) };
    dragged = false;
  });
  document.addEventListener("pointermove", ({ clientX }) => {
    if (!drag || (!dragged && Math.abs(clientX - drag.clientX) < DRAG_PX)) return;
    dragged = true;
    choose(drag.start_s, time_at(drag.track, clientX));
  });
  for (const name of ["pointerup", "pointercancel"]) document.addEventListener(name, () => { drag = null; });

  document.addEventListener("click", ({ target, clientX }) => {
    const button = target.closest?.("#compare .times button");
    if (button) go(Number(button.dataset.start));
    if (button && is_alarm(button)) choose(Number(button.dataset.start), Number(button.dataset.end));
    const track = target.closest?.("#compare .track");
    if (!track || dragged) return;
    const rect = target.closest("rect");
    const { start, end } = rect?.dataset ?? { start: 0, end: Infinity };
    go(Math.min(Math.max(time_at(track, clientX), Number(start)), Number(end) - INSIDE_S));
    if (rect && is_alarm(rect)) choose(Number(start), Number(end));
  });
  document.addEventListener("input", ({ target }) => target.closest?.("#redo-span") && mark());
  document.addEventListener("keydown", (event) => {
    const track = event.target.closest?.("#compare .track");
    if (!track) return;
    const starts = times(track).map(({ start }) => Number(start));
    const later = starts.find((start_s) => start_s > at() + 0.005);
    const earlier = starts.findLast((start_s) => start_s < at() - 0.005);
    const aims = { ArrowRight: later, ArrowDown: later, ArrowLeft: earlier, ArrowUp: earlier };
    const aim_s = { ...aims, Home: starts[0], End: starts.at(-1) }[event.key];
    if (aim_s !== undefined) go(aim_s);
    const here = times(track).find(({ start, end }) => Number(start) <= at() + 0.005 && at() < Number(end));
    if (event.key === "Enter" && here) choose(Number(here.start), Number(here.end));
    if (event.key.startsWith("Arrow")) event.preventDefault();
  });
  for (const name of ["timeupdate", "seeked", "loadedmetadata"])
    document.addEventListener(name, ({ target }) => target.closest?.("#compare") && show(), true);
})();
