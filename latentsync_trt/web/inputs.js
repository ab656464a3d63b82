// Video and speech that are given: of any kind that can be synced; start and end of the video on a timeline.
(() => {
  // What the choosers offer. Of any other file that is dropped, the server says what is wrong with it.
  const KINDS = {
    video: "video/*,image/*,.mkv,.avi,.mov,.mts,.m2ts,.ts,.flv,.wmv,.mxf,.heic",
    speech: "audio/*,video/*,.mkv,.avi,.mov,.mts,.m2ts,.ts,.flv,.wmv,.mxf,.amr,.opus",
  };
  const TYPES = { video: "video/mp4", speech: "audio/wav" };
  const LEAST_S = 0.1;
  const part = (name) => document.querySelector(`#timeline ${name}`);
  const player = () => document.querySelector("#video video");
  const field = (name) => document.querySelector(`#option-${name} :is(input, textarea)`);
  const box = ({ target }) => target.closest?.("#video, #speech, #person-speech");
  const kind = (place) => (place.id === "video" ? "video" : "speech");
  const picker = (place) => place?.querySelector("input[type=file]");
  const clock = (time_s) => `${Math.floor(time_s / 60)}:${(time_s % 60).toFixed(2).padStart(5, "0")}`;
  const seconds = (text) => text.split(":").reduce((sum_s, each) => 60 * sum_s + Number(each), 0);

  // Gradio's components ask for files of one type, and refuse what the browser does not call one, such as photos.
  document.addEventListener("click", (event) => {
    const place = box(event);
    const file = picker(place);
    if (file) file.accept = KINDS[kind(place)];
  }, true);
  function give(place, file) {
    const given = new DataTransfer();
    const [wanted] = TYPES[kind(place)].split("/");
    given.items.add(file.type.startsWith(wanted) ? file : new File([file], file.name, { type: TYPES[kind(place)] }));
    picker(place).files = given.files;
  }
  document.addEventListener("change", (event) => {
    const place = box(event);
    if (place && event.target.files?.length) give(place, event.target.files[0]);
  }, true);
  document.addEventListener("drop", (event) => {
    const place = box(event);
    if (!picker(place) || !event.dataTransfer?.files.length) return;
    event.preventDefault();
    event.stopPropagation();
    give(place, event.dataTransfer.files[0]);
    picker(place).dispatchEvent(new Event("change", { bubbles: true }));
  }, true);

  // Gradio would call a clip an error that this browser cannot show: it can be synced all the same.
  function playable(event, good) {
    if (!event.target.matches?.("#video video")) return;
    if (!good) event.stopPropagation();
    document.querySelector("#video").classList.toggle("unplayable", !good);
    part(".cut").hidden = !good || !(player().duration > LEAST_S && player().duration < Infinity);
    if (good) show();
  }
  document.addEventListener("error", (event) => playable(event, false), true);
  document.addEventListener("loadedmetadata", (event) => playable(event, event.target.videoWidth > 0), true);

  function show() {
    const [from, to, end_s] = [part(".from"), part(".to"), player()?.duration];
    if (!(end_s < Infinity)) return;
    from.max = to.max = end_s;
    from.value = seconds(field("start").value) || 0;
    to.value = seconds(field("end").value) || end_s;
    const handles = part(".handles");
    handles.style.setProperty("--from", Number(from.value) / end_s);
    handles.style.setProperty("--to", Number(to.value) / end_s);
    const whole = !field("start").value && !field("end").value;
    part("output").value = whole ? "The whole video" : `${clock(from.value)} – ${clock(to.value)}`;
  }

  function choose(name, time_s) {
    const [start, end_s] = [name === "start", player().duration];
    const other_s = Number(part(start ? ".to" : ".from").value);
    time_s = start ? Math.min(time_s, other_s - LEAST_S) : Math.max(time_s, other_s + LEAST_S);
    const all = start ? time_s < 0.01 : time_s > end_s - 0.01;
    field(name).value = all ? "" : time_s.toFixed(2);
    field(name).dispatchEvent(new Event("input", { bubbles: true }));
    show();
  }

  document.addEventListener("input", ({ target }) => {
    if (target.matches("#timeline input")) {
      choose(target.matches(".from") ? "start" : "end", Number(target.value));
      player().currentTime = Number(target.value);
    }
    if (target.closest("#option-start, #option-end")) show();
  });
  document.addEventListener("click", ({ target }) => {
    const button = target.closest?.("#timeline button");
    if (button) choose(button.className, player().currentTime);
  });
})();
