// Bands of times below the players: a click takes both there; arrow keys go from one time of a band to the next.
(() => {
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
    const [now_s, lasts_s] = [at(), Number(bands().dataset.lasts)];
    bands().style.setProperty("--at", Math.min(1, Math.max(0, now_s / lasts_s)));
    for (const track of bands().querySelectorAll(".track")) {
      const rects = [...track.querySelectorAll("rect")];
      const one = rects.find(({ dataset }) => Number(dataset.start) <= now_s + 0.005 && now_s < Number(dataset.end));
      track.setAttribute("aria-valuenow", now_s.toFixed(2));
      track.setAttribute("aria-valuetext", one?.textContent ?? `${now_s.toFixed(1)} s: none`);
    }
  }

  document.addEventListener("click", ({ target, clientX }) => {
    const button = target.closest?.("#compare .times button");
    if (button) go(Number(button.dataset.start));
    const track = target.closest?.("#compare .track");
    if (!track) return;
    const { left, width } = track.getBoundingClientRect();
    const time_s = (Number(bands().dataset.lasts) * (clientX - left)) / width;
    const { start, end } = target.closest("rect")?.dataset ?? { start: 0, end: Infinity };
    go(Math.min(Math.max(time_s, Number(start)), Number(end) - INSIDE_S));
  });
  document.addEventListener("keydown", (event) => {
    const track = event.target.closest?.("#compare .track");
    if (!track) return;
    const starts = times(track).map(({ start }) => Number(start));
    const later = starts.find((start_s) => start_s > at() + 0.005);
    const earlier = starts.findLast((start_s) => start_s < at() - 0.005);
    const aims = { ArrowRight: later, ArrowDown: later, ArrowLeft: earlier, ArrowUp: earlier };
    const aim_s = { ...aims, Home: starts[0], End: starts.at(-1) }[event.key];
    if (aim_s !== undefined) go(aim_s);
    if (event.key.startsWith("Arrow")) event.preventDefault();
  });
  for (const name of ["timeupdate", "seeked", "loadedmetadata"])
    document.addEventListener(name, ({ target }) => target.closest?.("#compare") && show(), true);
})();
