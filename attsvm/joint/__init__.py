"""Head and attention trained together: the coupled max-margin problems, and the path of the pair in growing balls."""

from attsvm.joint.comparison import JointComparison, compare_joint
from attsvm.joint.path import JointPath, joint_path
from attsvm.joint.svm import JointSolution, consistent_selection, joint_svm, label_svm

__all__ = [
    "JointComparison",
    "JointPath",
    "JointSolution",
    "compare_joint",
    "consistent_selection",
    "joint_path",
    "joint_svm",
    "label_svm",
]
