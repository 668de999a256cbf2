"""Conjugate gradients for free rows on a torch device: vectors stay there, and one number comes back now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.conjugate_gradient import Descended
from attsvm.solvers.device_rows import DeviceProducts

if TYPE_CHECKING:
    import torch

    from attsvm.solvers.frobenius.face_system import Metric
    from attsvm.solvers.frobenius.row_features import FeaturePreconditioner

__all__ = ["DeviceSystem", "descend_on_device"]

# Steps between two looks at the residual: a look waits for the device.
_STEPS = 8


class DeviceSystem:
    """The Gram matrix of free rows and its preconditioner as tensors: nothing in here touches NumPy.

    Parameters
    ----------
    products : DeviceProducts
        Of the free rows.
    root : Tensor, shape (s,)
    features : Tensor, shape (s, count)
        As in `attsvm.solvers.frobenius.row_features.FeaturePreconditioner`.
    inverse : Tensor, shape (count, count)
        Of the triangular factor there.
    metric : tuple of Tensor, optional
        Left and right matrix of the metric.
    """

    def __init__(
        self,
        products: DeviceProducts,
        root: torch.Tensor,
        features: torch.Tensor,
        inverse: torch.Tensor,
        metric: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        self.products, self.root, self.features, self.inverse, self.metric = products, root, features, inverse, metric

    @classmethod
    def of(
        cls, products: DeviceProducts, precondition: FeaturePreconditioner, metric: Metric | None = None
    ) -> DeviceSystem:
        """The same preconditioner on the device of the products."""
        import torch

        device = products.vectors.device
        arrays = (precondition.root, precondition.features, precondition.inverse_factor())
        root, features, inverse = (torch.as_tensor(np.ascontiguousarray(x), device=device) for x in arrays)
        sides = None
        if metric is not None:
            left, right = (torch.as_tensor(x, dtype=root.dtype, device=device) for x in (metric.left, metric.right))
            sides = left, right
        return cls(products, root, features, inverse, sides)

    def product(self, v: torch.Tensor) -> torch.Tensor:
        """The Gram matrix times v in float32, shape (s,)."""
        dual = self.products.adjoint(v.to(self.root.dtype))
        if self.metric is not None:
            left, right = self.metric
            dual = 0.5 * (left @ dual + dual @ right)
        return self.products.margins(dual).to(v.dtype)

    def precondition(self, v: torch.Tensor) -> torch.Tensor:
        """``(D + F F^T)^-1 v``, shape (s,)."""
        scaled = self.root * v.to(self.root.dtype)
        if self.features.shape[1]:
            inner = self.inverse.mT @ (self.inverse @ (self.features.mT @ scaled.unsqueeze(1)))
            scaled = scaled - (self.features @ inner).squeeze(1)
        return (self.root * scaled).to(v.dtype)

    def descend(
        self, target: torch.Tensor, max_steps: int, look: Callable[[torch.Tensor, torch.Tensor], bool]
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Conjugate gradients from 0.

        Parameters
        ----------
        target : Tensor, shape (s,)
        max_steps : int
        look : callable
            Given every few steps the energy of the residual and the least curvature met, as tensors on the device;
            True ends it.

        Returns
        -------
        x : Tensor, shape (s,)
        least : Tensor
            The least curvature met, relative to the square of its direction.
        steps : int
        """
        import torch

        x, rest = target.new_zeros(target.shape), target.clone()
        direction = self.precondition(rest)
        energy = (rest * direction).sum()
        least = energy.new_full((), float("inf"))
        steps = 0
        while steps < max_steps:
            steps += 1
            image = self.product(direction)
            curvature = (direction * image).sum()
            # Between two looks it may be done already: nothing is left to go along then.
            going = energy > 0.0
            least = torch.where(going, least.minimum(curvature / direction.square().sum()), least)
            step = torch.where(going, energy / curvature, 0.0)
            x = x + step * direction
            rest = rest - step * image
            solved = self.precondition(rest)
            following = (rest * solved).sum()
            direction = solved + torch.where(going, following / energy, 0.0) * direction
            energy = following
            if steps % _STEPS == 0 and look(energy, least):
                break
        return x, least, steps


def descend_on_device(
    system: DeviceSystem, target: FloatArray, accuracy: float, max_steps: int, stop: Callable[[], bool] | None = None
) -> Descended:
    """`attsvm.solvers.conjugate_gradient.conjugate_gradient` for a system on a device.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import SharedRows
    >>> from attsvm.solvers.device_gradient import DeviceSystem, descend_on_device
    >>> from attsvm.solvers.device_rows import DeviceRows
    >>> from attsvm.solvers.frobenius.row_features import FeatureBasis, FeaturePreconditioner
    >>> zero = np.array([0])
    >>> rows = DeviceRows.of(SharedRows(np.eye(2)[None], np.ones((1, 1)), zero, zero, zero, zero + 1), "cpu")
    >>> precondition = FeaturePreconditioner(FeatureBasis(rows, zero, 1), rows, zero)
    >>> descend_on_device(DeviceSystem.of(rows.products, precondition), np.array([4.0]), 1e-6, 9).x.round(5)
    array([2.])
    """
    import torch

    there = torch.as_tensor(target, dtype=torch.float64, device=system.root.device)
    goal = accuracy**2 * (there * system.precondition(there)).sum()

    def look(energy: torch.Tensor, least: torch.Tensor) -> bool:
        return bool(((energy <= goal) | (least <= 0.0)).item()) or (stop is not None and stop())

    x, least, steps = system.descend(there, max_steps, look)
    found = np.asarray(x.cpu().numpy(), dtype=np.float64)
    flat = not float(least) > 0.0
    return Descended(found, found, steps, "singular" if flat or not np.isfinite(found).all() else "solved")
