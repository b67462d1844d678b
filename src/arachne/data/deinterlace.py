"""Interlaced frames become progressive ones, as many as there were."""

from collections import deque
from collections.abc import Iterator

from av.error import BlockingIOError as AgainError
from av.error import EOFError as EndError
from av.filter import Graph
from av.video.frame import VideoFrame
from av.video.stream import VideoStream


def deinterlaced(frames: Iterator[VideoFrame], stream: VideoStream) -> Iterator[VideoFrame]:
    """The same frames with the same stamps; from the first interlaced one on they pass a filter.

    The filter (FFmpeg's yadif, one frame out for each frame in) leaves progressive frames alone.
    """
    for frame in frames:
        if not frame.interlaced_frame:
            yield frame
            continue
        yield from _filtered(_chain(frame, frames), stream)


def _chain(first: VideoFrame, rest: Iterator[VideoFrame]) -> Iterator[VideoFrame]:
    yield first
    yield from rest


def _filtered(frames: Iterator[VideoFrame], stream: VideoStream) -> Iterator[VideoFrame]:
    graph = Graph()
    source = graph.add_buffer(template=stream)
    filtering = graph.add("yadif", "mode=send_frame:deint=interlaced")
    sink = graph.add("buffersink")
    source.link_to(filtering)
    filtering.link_to(sink)
    graph.configure()
    stamps: deque[int | None] = deque()  # the filter halves the time base, so stamps go around it
    for frame in frames:
        stamps.append(frame.pts)
        graph.push(frame)
        yield from _pulled(graph, stamps)
    graph.push(None)
    yield from _pulled(graph, stamps)


def _pulled(graph: Graph, stamps: deque[int | None]) -> Iterator[VideoFrame]:
    while stamps:
        try:
            frame = graph.pull()
        except (AgainError, EndError):
            return
        assert isinstance(frame, VideoFrame)
        frame.pts = stamps.popleft()
        yield frame
