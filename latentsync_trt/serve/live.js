"use strict";
const at = (id) => document.getElementById(id);
const say = (text) => { at("status").textContent = text; };
const RATE_HZ = 24000, PIECE = RATE_HZ / 5;
const STATES = {connecting: "Connecting…", connected: "Connected", disconnected: "Connection lost, trying again…",
  failed: "Connection failed", closed: "Not connected"};
let peer = null, socket = null;

function show(state) {
  at("state").dataset.state = state;
  at("state").textContent = STATES[state] ?? STATES.connecting;
  at("connect").disabled = !["failed", "closed"].includes(state);
  at("recording").disabled = at("stop").disabled = state !== "connected" || socket?.readyState !== WebSocket.OPEN;
}

async function connect() {
  peer?.close();
  socket?.close();
  show("connecting");
  say("");
  const stream = at("microphone").checked ? await navigator.mediaDevices.getUserMedia({audio: true}) : null;
  peer = new RTCPeerConnection();
  window.peer = peer;
  peer.addTransceiver("video", {direction: "recvonly"});
  if (stream) peer.addTrack(stream.getAudioTracks()[0], stream);
  else peer.addTransceiver("audio", {direction: "recvonly"});
  const shown = new MediaStream();
  at("video").srcObject = shown;
  peer.ontrack = (event) => shown.addTrack(event.track);
  peer.onconnectionstatechange = () => show(peer.connectionState);
  await peer.setLocalDescription();
  await new Promise((done) => {
    if (peer.iceGatheringState === "complete") done();
    peer.onicegatheringstatechange = () => peer.iceGatheringState === "complete" && done();
  });
  const key = at("key").value;
  const answer = await fetch("v1/live", {
    method: "POST",
    headers: key ? {Authorization: `Bearer ${key}`} : {},
    body: JSON.stringify({sdp: peer.localDescription.sdp}),
  });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  await peer.setRemoteDescription({type: found.type, sdp: found.sdp});
  const base = location.href.replace(/^http/, "ws").replace(/[^/]*$/, "");
  socket = new WebSocket(`${base}v1/live/${found.id}/speech?rate=${RATE_HZ}`);
  socket.onopen = () => show(peer.connectionState);
  socket.onclose = (event) => {
    if (event.target === socket) show(peer.connectionState);
  };
  socket.onmessage = (event) => {
    const told = JSON.parse(event.data);
    if (told.type === "error") say(told.error);
    if (told.type === "finished") say("Said.");
    if (told.type === "stopped") say(`Stopped after ${told.heard_s} s.`);
  };
}

async function speak(file) {
  say(`Saying ${file.name}…`);
  const context = new OfflineAudioContext(1, 1, RATE_HZ);
  const samples = (await context.decodeAudioData(await file.arrayBuffer())).getChannelData(0);
  for (let start = 0; start < samples.length; start += PIECE) {
    const piece = samples.subarray(start, start + PIECE);
    socket.send(Int16Array.from(piece, (value) => Math.max(-32768, Math.min(32767, Math.round(value * 32768)))));
  }
  socket.send(JSON.stringify({type: "end"}));
}

at("form").onsubmit = (event) => {
  event.preventDefault();
  connect().catch((error) => {
    show("failed");
    say(error.message);
  });
};
at("recording").onchange = (event) => speak(event.target.files[0]).catch((error) => say(error.message));
at("stop").onclick = () => socket.send(JSON.stringify({type: "stop"}));
