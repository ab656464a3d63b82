"""`python -m latentsync_trt` is `latentsync-trt`."""

from latentsync_trt.cli import main

if __name__ == "__main__":
    main(prog_name="latentsync-trt")
