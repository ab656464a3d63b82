// Two players as one: the result leads, and is heard; the source follows.
(() => {
  const MOST_APART_S = 0.08;
  const part = (name) => document.querySelector(`#compare ${name}`);
  const clock = (time_s) => `${Math.floor(time_s / 60)}:${String(Math.floor(time_s % 60)).padStart(2, "0")}`;

  function follow() {
    const [before, after, seek] = [part("#before"), part("#after"), part(".seek")];
    if (!after || !after.duration) return;
    const target_s = Math.min(after.currentTime, before.duration || 0);
    const most_s = after.paused ? 0.001 : MOST_APART_S;
    if (Math.abs(before.currentTime - target_s) > most_s && !before.seeking) before.currentTime = target_s;
    seek.max = after.duration;
    seek.value = after.currentTime;
    part("output").value = `${clock(after.currentTime)} / ${clock(after.duration)}`;
    part(".play").classList.toggle("playing", !after.paused);
  }

  document.addEventListener("click", ({ target }) => {
    if (!target.closest?.("#compare")) return;
    const after = part("#after");
    if (target.closest(".play, video")) after.paused ? after.play() : after.pause();
    const view = target.closest(".view");
    if (view) {
      const side = part(".players").dataset.view === "wipe";
      part(".players").dataset.view = side ? "side" : "wipe";
      view.setAttribute("aria-pressed", side);
    }
  });
  document.addEventListener("input", ({ target }) => {
    if (target.matches("#compare #wipe")) part(".players").style.setProperty("--wipe", `${target.value}%`);
    if (target.matches("#compare .seek")) part("#after").currentTime = Number(target.value);
  });

  // Events of media do not bubble.
  const on = (name, act) =>
    document.addEventListener(name, ({ target }) => target.closest?.("#compare") && act(target), true);
  for (const name of ["play", "pause"]) on(name, (video) => video.id === "after" && part("#before")[name]());
  for (const name of ["play", "pause", "seeking", "seeked", "timeupdate"]) on(name, follow);
  on("loadedmetadata", (video) => {
    video.closest("figure").classList.add("ready");
    part(".state").hidden = Boolean(part("#before").videoWidth && part("#after").videoWidth);
    if (video.id === "after") for (const control of [part(".play"), part(".seek")]) control.disabled = false;
    if (video.videoWidth) part(".players").style.setProperty("--ratio", video.videoWidth / video.videoHeight);
    follow();
  });
  on("error", (video) => {
    part(".state").hidden = false;
    part(".state").textContent = `The video ${video.id} cannot be shown here; download the result.`;
  });
})();
