"""A training-free video autoencoder: block DCT with 4×8×8 compression, the first frame apart.

Frames become YCbCr. The first frame is cut into blocks of 8×8 pixels, all later ones into blocks
of 4 frames × 8×8 pixels. Of each block's orthonormal DCT-II the lowest frequencies are kept: those
with the smallest t + v + w, the sum of their indices along time, height and width; ties go to the
smaller (t, v, w). The inverse is the transpose, with zeros for what was not kept.

Every channel has an expected standard deviation, that of a first-order Markov image: the model for
which the DCT is close to the best transform (Ahmed, Natarajan, Rao 1974, "Discrete Cosine
Transform", IEEE Trans. Computers C-23). Channels are divided by its square root, and all by one
factor that brings the mean square to about 1. So high frequencies stay smaller than low ones, as in
the video: a model that leaves some noise in every channel alike then leaves little in the picture.

Shape suffixes:
  F frames   H height   W width   T frames of a block   P pixels of a block (T·8·8)
  C channels   f latent frames   h latent height   w latent width
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from arachne.core.errors import DataError

TEMPORAL_COMPRESSION = 4
SPATIAL_COMPRESSION = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plane:
    """A colour plane as a Markov process: pixel standard deviation, correlation of neighbours."""

    pixel_std: float
    rho_space: float
    rho_time: float


# Typical of 8-bit video; 0.95 is customary for luma (Jain 1989), chroma is smoother. Measured
# on four public test clips at about 200x130: std of Y 42-68, of Cb 3-29, of Cr 4-9;
# correlation of neighbours 0.96-0.99, with the next frame 0.72 (fast panning) to 0.999
# (still camera). With these figures the kept channels' root mean square was 0.3-2.6, 1.0 in the
# median.
_LUMA = _Plane(pixel_std=55.0, rho_space=0.95, rho_time=0.95)
_CHROMA = _Plane(pixel_std=12.0, rho_space=0.98, rho_time=0.95)

_YCBCR_OF_RGB = np.array(
    # ITU-R BT.601 at full range, as in JPEG (JFIF 1.02).
    [[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]]
)
_RGB_OF_YCBCR = np.linalg.inv(_YCBCR_OF_RGB)
_MID_GREY = 128.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DctCodec:
    """Encodes and decodes clips without any weights.

    Attributes:
        kept_luma: Coefficients kept of each Y block.
        kept_chroma: Coefficients kept of each Cb and each Cr block.
    """

    kept_luma: int = 24
    kept_chroma: int = 12

    def __post_init__(self) -> None:
        most = TEMPORAL_COMPRESSION * SPATIAL_COMPRESSION**2
        assert 1 <= self.kept_luma <= most, self.kept_luma
        assert 1 <= self.kept_chroma <= most, self.kept_chroma

    @property
    def latent_channels(self) -> int:
        """Channels of the latents: Y, then Cb, then Cr, each from low to high frequency."""
        return self.kept_luma + 2 * self.kept_chroma

    @property
    def temporal_compression(self) -> int:
        """Frames per latent frame, the first frame apart."""
        return TEMPORAL_COMPRESSION

    @property
    def spatial_compression(self) -> int:
        """Pixels per latent, on each side."""
        return SPATIAL_COMPRESSION

    @property
    def fingerprint(self) -> str:
        """Digest of all kernels and scales, rounded so that every machine finds the same."""
        digest = hashlib.sha256(np.round(_YCBCR_OF_RGB * 1e6).astype("<i8").tobytes())
        for num_frames in (1, TEMPORAL_COMPRESSION):
            for (_, kept), scales_C in zip(self._planes(), self._scales(num_frames), strict=True):
                for values in (_kernels(num_frames, kept), scales_C):
                    digest.update(np.round(values * 1e4).astype("<i8").tobytes())
        return f"dct-{digest.hexdigest()[:16]}"

    def encode(self, frames: np.ndarray) -> np.ndarray:
        """Latents float32 [C, (F-1)/4+1, H/8, W/8] of frames uint8 [F, H, W, 3].

        Raises:
            DataError: The frames have another form, or a size that the blocks do not divide.
        """
        _check_frames(frames)
        groups = [frames[:1]]
        groups += [
            frames[first : first + TEMPORAL_COMPRESSION]
            for first in range(1, len(frames), TEMPORAL_COMPRESSION)
        ]
        return np.stack([self._encode_group(group) for group in groups], axis=1)

    def encode_first(self, frame: np.ndarray, num_frames: int) -> np.ndarray:
        """Latents of a clip that is `frame` [H, W, 3] first, and grey for the rest: zeros there."""
        first_C1hw = self.encode(frame[None])
        num_later = (num_frames - 1) // TEMPORAL_COMPRESSION
        return np.pad(first_C1hw, ((0, 0), (0, num_later), (0, 0), (0, 0)))

    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Frames uint8 [F, H, W, 3] of latents [C, f, h, w]; values outside 0..255 are clipped.

        Raises:
            DataError: The latents have another number of channels.
        """
        if latents.ndim != 4 or latents.shape[0] != self.latent_channels or not latents.size:
            raise DataError(
                f"latents of shape {latents.shape} cannot be decoded; the dct encoder needs "
                f"[{self.latent_channels}, frames, height, width]"
            )
        groups = [self._decode_group(latents[:, 0], 1)]
        groups += [
            self._decode_group(latents[:, index], TEMPORAL_COMPRESSION)
            for index in range(1, latents.shape[1])
        ]
        return np.concatenate(groups)

    def _planes(self) -> tuple[tuple[_Plane, int], ...]:
        return (_LUMA, self.kept_luma), (_CHROMA, self.kept_chroma), (_CHROMA, self.kept_chroma)

    def _scales(self, num_frames: int) -> list[np.ndarray]:
        """For Y, Cb and Cr: what each kept coefficient is divided by."""
        stds = [_stds(num_frames, kept, plane) for plane, kept in self._planes()]
        factor = np.sqrt(np.concatenate(stds).mean(dtype=np.float64))
        return [np.sqrt(of_plane) * np.float32(factor) for of_plane in stds]

    def _encode_group(self, frames_THW3: np.ndarray) -> np.ndarray:
        size = SPATIAL_COMPRESSION
        num_frames, height, width, _ = frames_THW3.shape
        h, w = height // size, width // size
        # The rows of Cb and Cr sum to 0, so that subtracting grey first centres Y alone.
        ycbcr_THW3 = (frames_THW3 - np.float32(_MID_GREY)) @ _YCBCR_OF_RGB.T.astype(np.float32)
        blocks = ycbcr_THW3.reshape(num_frames, h, size, w, size, 3).transpose(5, 0, 2, 4, 1, 3)
        planes_3PN = blocks.reshape(3, num_frames * size * size, h * w)
        channels_CN = [
            _kernels(num_frames, kept) @ plane_PN / scales_C[:, None]
            for (_, kept), plane_PN, scales_C in zip(
                self._planes(), planes_3PN, self._scales(num_frames), strict=True
            )
        ]
        return np.concatenate(channels_CN).reshape(self.latent_channels, h, w)

    def _decode_group(self, latents_Chw: np.ndarray, num_frames: int) -> np.ndarray:
        size = SPATIAL_COMPRESSION
        _, h, w = latents_Chw.shape
        channels_CN = latents_Chw.reshape(self.latent_channels, h * w).astype(np.float32)
        planes_PN: list[np.ndarray] = []
        for (_, kept), scales_C in zip(self._planes(), self._scales(num_frames), strict=True):
            scaled_CN = channels_CN[:kept] * scales_C[:, None]
            planes_PN.append(_kernels(num_frames, kept).T @ scaled_CN)
            channels_CN = channels_CN[kept:]
        blocks = np.stack(planes_PN).reshape(3, num_frames, size, size, h, w)
        ycbcr_THW3 = blocks.transpose(1, 4, 2, 5, 3, 0).reshape(num_frames, h * size, w * size, 3)
        rgb_THW3 = ycbcr_THW3 @ _RGB_OF_YCBCR.T.astype(np.float32) + np.float32(_MID_GREY)
        return np.clip(np.rint(rgb_THW3), 0, 255).astype(np.uint8)


def psnr_db(frames: np.ndarray, others: np.ndarray) -> float:
    """Peak signal-to-noise ratio of two uint8 arrays: 10 · log10(255² / mean square difference)."""
    assert frames.shape == others.shape, (frames.shape, others.shape)
    difference = frames.astype(np.float64) - others.astype(np.float64)
    mean_square = float(np.mean(difference**2))
    return float("inf") if mean_square == 0.0 else float(10.0 * np.log10(255.0**2 / mean_square))


def _check_frames(frames: np.ndarray) -> None:
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.size:
        raise DataError(
            f"frames are {frames.dtype} of shape {frames.shape}; encoding needs uint8 "
            "[frames, height, width, 3]"
        )
    num_frames, height, width, _ = frames.shape
    below = (num_frames - 1) // TEMPORAL_COMPRESSION * TEMPORAL_COMPRESSION + 1
    if below != num_frames:
        raise DataError(
            f"{num_frames} frames are not {TEMPORAL_COMPRESSION}k+1; nearest that fit: "
            f"{below} or {below + TEMPORAL_COMPRESSION}"
        )
    for side, length in (("height", height), ("width", width)):
        if length % SPATIAL_COMPRESSION:
            below = length - length % SPATIAL_COMPRESSION
            raise DataError(
                f"{side} {length} is not a multiple of {SPATIAL_COMPRESSION}; nearest that fit: "
                f"{below} or {below + SPATIAL_COMPRESSION}"
            )


def _axes(num_frames: int) -> tuple[int, int, int]:
    return num_frames, SPATIAL_COMPRESSION, SPATIAL_COMPRESSION


def _kept_indices(num_frames: int, kept: int) -> list[tuple[int, int, int]]:
    """The first `kept` of a block's frequencies (t, v, w), from low to high; at most all."""
    num_t, num_v, num_w = _axes(num_frames)
    indices = product(range(num_t), range(num_v), range(num_w))
    return sorted(indices, key=lambda index: (sum(index), index))[:kept]


def _dct(length: int) -> np.ndarray:
    """The orthonormal DCT-II: row k is sqrt(2/n) · cos(π(2x + 1)k / 2n), row 0 is 1/sqrt(n)."""
    k, x = np.arange(length)[:, None], np.arange(length)[None, :]
    matrix = np.sqrt(2.0 / length) * np.cos(np.pi * (2 * x + 1) * k / (2 * length))
    matrix[0] /= np.sqrt(2.0)
    return matrix


@cache
def _kernels(num_frames: int, kept: int) -> np.ndarray:
    """Orthonormal rows [kept, P] in float32; a first frame has 64, further rows are zero."""
    matrices = [_dct(length) for length in _axes(num_frames)]
    kernels_CP = np.zeros((kept, num_frames * SPATIAL_COMPRESSION**2), np.float32)
    for row, index in enumerate(_kept_indices(num_frames, kept)):
        along_t, along_v, along_w = (matrix[k] for matrix, k in zip(matrices, index, strict=True))
        kernels_CP[row] = np.einsum("t,v,w->tvw", along_t, along_v, along_w).ravel()
    return kernels_CP


@cache
def _stds(num_frames: int, kept: int, plane: _Plane) -> np.ndarray:
    """Expected standard deviation of each kept coefficient, float32; 1 for the zero rows.

    Along one axis coefficient k of a Markov process with correlation rho has the variance

        var_k = b_k^T R b_k,  R_ij = rho^|i - j|,  b_k the k-th row of the DCT

    and a separable process multiplies the axes' variances and the pixel variance. It ignores that
    the mean of a clip differs from grey, which only widens the lowest coefficient.
    """
    rhos = (plane.rho_time, plane.rho_space, plane.rho_space)
    variances: list[np.ndarray] = []
    for length, rho in zip(_axes(num_frames), rhos, strict=True):
        distance = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
        matrix = _dct(length)
        variances.append(np.einsum("ki,ij,kj->k", matrix, rho**distance, matrix))
    stds = np.ones(kept, np.float32)
    for row, (t, v, w) in enumerate(_kept_indices(num_frames, kept)):
        stds[row] = plane.pixel_std * np.sqrt(variances[0][t] * variances[1][v] * variances[2][w])
    return stds
