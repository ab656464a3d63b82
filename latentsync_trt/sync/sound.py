"""The recordings that lips follow, and whose lips follow which of them when.

Times are exact seconds. Times of a recording become times of the output by `SoundPiece.at_s`.
Speech out of the video's own file stays where it is there; other recordings begin with the part
that is synced, those out of another video as much later as they begin there after its picture.
`--offset` moves all.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from latentsync_trt.config import SyncOptions
from latentsync_trt.errors import InputError
from latentsync_trt.media.audio import read_audio_blocks
from latentsync_trt.media.files import check_file, open_input
from latentsync_trt.media.reader import Delays, delays_of
from latentsync_trt.media.sound_pieces import SoundPiece
from latentsync_trt.option_fields import FaceChoice, parse_face
from latentsync_trt.paths import is_same_file, local_path
from latentsync_trt.sync.turns import SpeakerTurns, read_turns


@dataclass(frozen=True, slots=True)
class Sound:
    """All that is heard with a clip, and who speaks it."""

    recordings: tuple[SoundPiece, ...]
    """The recording of each speaker; several speakers may share one."""
    people: tuple[int, ...] | None = None
    """The number of each speaker's person; None for the one whom `--face` chooses."""
    turns: tuple[SpeakerTurns, ...] | None = None
    """When each speaker is painted, in times of the output; None for always."""
    notice: str | None = None
    """What was assumed about the speakers."""
    mix: SoundPiece | None = None
    """What is heard instead of the recordings."""
    video_sound: SoundPiece | None = None
    """The video's own sound, where some of it may be heard."""
    picture_delay_s: Fraction = Fraction(0)
    """How much later than the sound the video's picture begins."""

    @property
    def files(self) -> list[Path]:
        """The files of the speech, and of `mix`."""
        pieces = (*self.recordings, self.mix)
        return list(dict.fromkeys(piece.path for piece in pieces if piece is not None))

    @property
    def starts_s(self) -> Fraction:
        """When the first recording begins in the output."""
        return min(piece.at_s for piece in self.recordings)

    def face_choice(self, face: str) -> FaceChoice | dict[int, int]:
        """Returns whose face is painted: that of `--face`, or the speaker of each person."""
        if self.people is None:
            return parse_face(face)
        return {person: speaker for speaker, person in enumerate(self.people)}

    def speaks(self, speaker: int, time_s: Fraction) -> bool:
        """Returns whether `speaker` is painted at this time of the output."""
        return self.turns is None or time_s in self.turns[speaker]

    def later(self, by_s: Fraction) -> "Sound":
        """Returns the same sound, `by_s` later in the output."""
        turns = self.turns
        if turns is not None:
            turns = tuple(each.later(by_s) for each in turns)
        return replace(
            self,
            recordings=tuple(_later(piece, by_s) for piece in self.recordings),
            turns=turns,
            mix=self.mix and _later(self.mix, by_s),
            video_sound=self.video_sound and _later(self.video_sound, by_s),
            picture_delay_s=self.picture_delay_s + by_s,
        )

    def is_of(self, video: Path) -> bool:
        """Returns whether a recording is the video's own sound."""
        return any(is_same_file(piece.path, video) for piece in self.recordings)


def _later(piece: SoundPiece, by_s: Fraction) -> SoundPiece:
    return replace(piece, at_s=piece.at_s + by_s)


def resolve_speakers(
    audio: Path | None, piece_of: Callable[[Path], SoundPiece], options: SyncOptions
) -> Sound:
    """Returns the speakers that arguments and options name.

    Args:
        piece_of: says when the recording in a file is heard.

    Raises:
        InputError: they contradict each other or the file of turns, or are missing.
        MediaError: the file of turns cannot be read.
    """
    _check_recordings(audio, options)
    people = tuple(speaker.face for speaker in options.speaker)
    if audio is None:
        paths = [local_path(each.voice, f"--speaker {each.face}=") for each in options.speaker]
        return Sound(tuple(map(piece_of, paths)), people)
    recording = piece_of(audio)
    if options.turns is None:
        return Sound((recording,))
    path = local_path(options.turns, "--turns")
    check_file(path)
    turns = read_turns(path, recording.at_s)
    if options.speaker:
        return Sound((recording,) * len(people), people, _named_turns(path, turns, options))
    if len(turns) == 1:
        return Sound((recording,), turns=tuple(turns.values()))
    if options.face != "largest":
        problem = f"--face {options.face}: {path} has several speakers"
        raise InputError(f"{problem}; say with --speaker which person each is")
    assumed = ", ".join(f"person {number} = {name}" for number, name in enumerate(turns))
    notice = (
        f"{path}: in the order in which they first speak, "
        f"{assumed}; to change that, give --speaker N=NAME"
    )
    people = tuple(range(len(turns)))
    return Sound((recording,) * len(turns), people, tuple(turns.values()), notice)


def _named_turns(
    path: Path, turns: dict[str, SpeakerTurns], options: SyncOptions
) -> tuple[SpeakerTurns, ...]:
    """Returns the turns of each of `options.speaker`; raises `InputError` for one without any."""
    names = [speaker.voice for speaker in options.speaker]
    for name in names:
        if name not in turns:
            raise InputError(
                f"--speaker …={name}: {path} has no such speaker; it has {', '.join(turns)}"
            )
    return tuple(turns[name] for name in names)


def _check_recordings(audio: Path | None, options: SyncOptions) -> None:
    """Raises `InputError` where no recording, or more than one of a person, is named."""
    cure = ""
    if options.turns is not None:
        cure = "whose speakers --turns names"
    elif not options.speaker:
        cure = "or one for each person with --speaker N=FILE"
    if audio is None and cure:
        raise InputError(f"no speech: give a recording with --audio, {cure}")
    if audio is not None and options.speaker and options.turns is None:
        cure = "give all recordings with --speaker N=FILE, or say with --turns who speaks when"
        raise InputError(f"--audio and --speaker exclude each other: {cure} in --audio")
    people = set[int]()
    for speaker in options.speaker:
        if speaker.face in people:
            problem = f"--speaker {speaker.face}=…: person {speaker.face} has several recordings"
            raise InputError(f"{problem}; give each person one")
        people.add(speaker.face)


def sound_of(video: Path, audio: Path | None, mix: Path | None, options: SyncOptions) -> Sound:
    """Returns what is heard with a video, by arguments and options; decodes the first samples of
    all files.

    Raises:
        InputError: as `resolve_speakers`.
        MediaError: a file has no sound that can be read.
    """
    video_sound = None
    delays = Delays()
    if _needs_own_sound(video, audio, mix, options):
        delays = delays_of(video, video)
        video_sound = SoundPiece(video, delays.sound_s)

    def piece_of(path: Path) -> SoundPiece:
        if is_same_file(path, video):
            start_s = delays.sound_s
        else:
            start_s = delays_of(video, path).sound_s + (options.start or 0)
        return SoundPiece(path, start_s + Fraction(str(options.offset)) / 1000)

    speakers = resolve_speakers(audio, piece_of, options)
    sound = replace(
        speakers,
        mix=None if mix is None else piece_of(mix),
        video_sound=video_sound,
        picture_delay_s=delays.picture_s,
    )
    for path in sound.files:
        with closing(read_audio_blocks(path)) as blocks:
            next(blocks, None)
    return sound


def _needs_own_sound(
    video: Path, audio: Path | None, mix: Path | None, options: SyncOptions
) -> bool:
    """Returns whether some of the video's sound may be heard, and it has any."""
    named = [path for path in (audio, mix) if path is not None]
    named += [Path(speaker.voice) for speaker in options.speaker]
    is_part = options.start is not None or options.end is not None
    if not is_part and not any(is_same_file(video, path) for path in named):
        return False
    with open_input(video) as container:
        return bool(container.streams.audio)
